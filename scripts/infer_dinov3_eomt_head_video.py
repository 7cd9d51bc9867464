"""Baseline: segment videos with unmodified LightlyTrain, one frame at a time, every stage timed.

    python scripts/infer_dinov3_eomt_head_video.py --model exported_best.pt --video-dir videos --out-dir out \
        --overwrite

Two modes:

- `upstream_script`: what a straightforward script does. OpenCV decodes; the frame is turned to RGB and into a
  PIL image; LightlyTrain preprocesses it and runs the network (BF16 autocast on a GPU); the class scores are
  resized to the frame and copied to the host in full (classes x height x width, fp32); NumPy takes the
  argmax and the mean class probability over each class's pixels.
- `upstream_predict`: `model.predict` (BF16 autocast on a GPU) of the same PIL image; the mask comes back.

Writes `OUT/<stem>/masks.mkv` (lossless class ids) and `overlay.mp4`, and the times as JSON. `prep`, `model`
and `post` are host times with the GPU synchronised at every boundary; writing the videos is timed apart.
In `upstream_predict`, `model` is all of `predict`, `post` the copy of the mask. `total` is the wall time of
the whole video, decoding and writing included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.engine import resolve_device
from fasteomt.errors import InputError, InterruptedRun, PartialResultError, need
from fasteomt.files import write_json
from fasteomt.peers.upstream_video import MODES, STAGES, segment_timed
from fasteomt.video.sink import mask_dtype
from fasteomt.video.write import VideoWriter

NAME = "infer_dinov3_eomt_head_video"
WRITTEN_STAGES = (*STAGES, "write")
VIDEO_SUFFIXES = {".mp4", ".mkv", ".mov", ".avi", ".webm", ".m4v"}
OVERLAY_ALPHA = 0.5
# Golden-angle hues: neighbouring ids stay far apart for any number of classes.
HUE_STEP = 0.381966


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(prog=NAME, description="Segment videos with unmodified LightlyTrain, frame by frame.")
    p.add_argument("--model", type=Path, required=True, help="LightlyTrain export (.pt)")
    p.add_argument("--video-dir", type=Path, required=True, help="folder of videos, or one video")
    p.add_argument("--out-dir", type=Path, required=True)
    p.add_argument("--overwrite", action="store_true", help="replace existing output")
    p.add_argument("--mode", default="upstream_script", choices=list(MODES))
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--json", type=Path, metavar="FILE", help="times; default OUT_DIR/timings_<mode>.json")
    return p


@dataclass
class Times:
    """Milliseconds per frame and stage, and the wall seconds of the whole video.

    `confidence`: per frame, by class id, the mean class probability over the pixels predicted as it.
    """

    stages: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in WRITTEN_STAGES})
    confidence: list[dict[int, float]] = field(default_factory=list)
    total_s: float = 0.0

    def report(self) -> dict[str, Any]:
        # The first frame pays for lazy initialisation; it counts in `total`, not in the stages' figures.
        warm = {stage: values[1:] or values for stage, values in self.stages.items()}
        frame = [sum(values) for values in zip(*(warm[s] for s in STAGES), strict=True)]
        count = len(self.stages["prep"])
        return {
            "frames": count,
            "ms": {
                name: {"mean": statistics.fmean(values), "median": statistics.median(values)}
                for name, values in (*warm.items(), ("frame", frame))
            },
            "first_frame_ms": sum(self.stages[s][0] for s in STAGES),
            "fps_frame": 1000 / statistics.median(frame),
            "total_s": self.total_s,
            "fps_total": count / self.total_s,
            "per_frame_ms": self.stages,
            "per_frame_confidence": self.confidence,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parser().parse_args(arguments)
    return exit_code(NAME, lambda: infer(args))


def infer(args: argparse.Namespace) -> dict[str, Any]:
    """Run all videos; returns what was written to the JSON file.

    Raises:
        FastEomtError: one line that says what is wrong.
    """
    # LightlyTrain reports usage over the network otherwise.
    os.environ.setdefault("LIGHTLY_TRAIN_EVENTS_DISABLED", "1")
    lightly_train = need("lightly_train", extra="train")
    videos = find_videos(args.video_dir)
    timings: Path = args.json or args.out_dir / f"timings_{args.mode}.json"
    outputs = {v: [args.out_dir / v.stem / name for name in ("masks.mkv", "overlay.mp4")] for v in videos}
    for path in [timings, *(path for paths in outputs.values() for path in paths)]:
        if path.exists() and not args.overwrite:
            raise InputError(f"{path} exists: choose another --out-dir or pass --overwrite")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent}: can't be created: {error.strerror or error}") from None
    device = resolve_device(args.device)
    model = load(lightly_train, args.model, device)
    result: dict[str, Any] = {
        "mode": args.mode,
        "model": str(args.model),
        "model_name": model.model_name,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": {"torch": torch.__version__, "lightly_train": lightly_train.__version__},
        "precision": "bf16 autocast" if device.type == "cuda" else "fp32",
        "videos": {},
    }
    for video, (masks, overlay) in outputs.items():
        times = run_video(model, device, args.mode, video, masks, overlay, args.overwrite)
        result["videos"][video.name] = report = times.report()
        print_report(args.mode, video.name, report)
    write_json(timings, result, overwrite=True)
    return result


def find_videos(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError(f"no such folder: --video-dir {folder}: check the path")
    videos = sorted(path for path in folder.iterdir() if path.suffix.lower() in VIDEO_SUFFIXES)
    if not videos:
        raise InputError(f"{folder} holds no video ({', '.join(sorted(VIDEO_SUFFIXES))}): check --video-dir")
    stems = [path.stem for path in videos]
    for path in videos:
        if stems.count(path.stem) > 1:
            raise InputError(f"{folder} holds several videos named {path.stem}: rename one of them")
    return videos


def load(lightly_train: Any, path: Path, device: torch.device) -> Any:
    from fasteomt.checkpoint import read

    # Our reader first: it refuses what isn't a model in one line, and unpickles nothing that could run code.
    read(path)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return lightly_train.load_model(path, device=device)


def frames_of(video: Path) -> tuple[float, Iterator[np.ndarray]]:
    """Frame rate, and the BGR frames as OpenCV decodes them, one at a time."""
    capture = cv2.VideoCapture(str(video))
    if not capture.isOpened():
        raise InputError(f"{video} can't be opened as a video: check the file")

    def frames() -> Iterator[np.ndarray]:
        try:
            while True:
                found, frame = capture.read()
                if not found:
                    return
                yield frame
        finally:
            capture.release()

    return capture.get(cv2.CAP_PROP_FPS) or 25.0, frames()


def run_video(
    model: Any, device: torch.device, mode: str, video: Path, masks: Path, overlay: Path, overwrite: bool
) -> Times:
    """Segment one video.

    Raises:
        InputError: not a video; InterruptedRun, PartialResultError: stopped half way, nothing kept.
    """
    times = Times()
    colours = palette(list(model.classes))
    mask_type = mask_dtype(list(model.classes))
    fps, frames = frames_of(video)
    started = time.perf_counter()
    try:
        with ExitStack() as stack:
            writers: list[VideoWriter] = []
            for bgr in frames:
                if not writers:
                    height, width = bgr.shape[:2]
                    gray = "gray" if mask_type == np.uint8 else "gray16le"
                    for writer in (
                        VideoWriter(masks, width, height, fps, "ffv1", pix_fmt=gray, overwrite=overwrite),
                        VideoWriter(overlay, width, height, fps, overwrite=overwrite),
                    ):
                        writers.append(stack.enter_context(writer))
                segmented, spans = segment_timed(mode, model, device, bgr)
                times.confidence.append(segmented.confidence)
                before = time.perf_counter()
                writers[0].write(segmented.mask.astype(mask_type))
                writers[1].write(blend(segmented.rgb, segmented.mask, colours))
                spans["write"] = 1000 * (time.perf_counter() - before)
                for stage, milliseconds in spans.items():
                    times.stages[stage].append(milliseconds)
            if not writers:
                raise InputError(f"{video} has no frame that can be decoded: check the file")
    except KeyboardInterrupt:
        raise InterruptedRun(f"interrupted in {video}: nothing of it was kept") from None
    except torch.cuda.OutOfMemoryError:
        raise PartialResultError(f"{video}: GPU memory ran out: use --device cpu") from None
    times.total_s = time.perf_counter() - started
    return times


def palette(ids: list[int]) -> np.ndarray:
    """(largest id + 1, 3) uint8 RGB; the first class, the background, stays transparent (black)."""
    colours = np.zeros((max(ids) + 1, 3), np.uint8)
    for k, i in enumerate(ids[1:]):
        hsv = np.array([[[180 * (k * HUE_STEP % 1), 200, 255]]], np.uint8)
        colours[i] = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0, 0]
    return colours


def blend(rgb: np.ndarray, mask: np.ndarray, colours: np.ndarray) -> np.ndarray:
    painted = cv2.addWeighted(rgb, 1 - OVERLAY_ALPHA, colours[mask], OVERLAY_ALPHA, 0)
    return np.where(colours[mask].any(axis=2, keepdims=True), painted, rgb)


def print_report(mode: str, name: str, report: dict[str, Any]) -> None:
    stages = ", ".join(f"{k} {v['mean']:.1f}/{v['median']:.1f}" for k, v in report["ms"].items())
    print(
        f"{mode} {name}: {report['frames']} frames; mean/median ms: {stages}; "
        f"{report['fps_frame']:.1f} FPS by frame time, {report['fps_total']:.1f} FPS over all "
        f"{report['total_s']:.2f} s (decode and write included)"
    )


if __name__ == "__main__":
    sys.exit(main())
