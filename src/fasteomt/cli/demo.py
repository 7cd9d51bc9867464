"""`fasteomt demo`: make a clip of generated heads, segment it, and leave a page to look at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fasteomt.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    ModelOption,
    OverwriteOption,
    StackOption,
    named_path,
)
from fasteomt.errors import InputError
from fasteomt.files import atomic_path, check_folder, check_target, find_replaced, is_temporary

if TYPE_CHECKING:
    from fasteomt.demo_page import Page
    from fasteomt.predictor import Predictor
    from fasteomt.result import Result
    from fasteomt.video import Summary

WIDTH, HEIGHT, BITRATE = 640, 480, 2_000_000
FPS = 12.0  # slow enough to look at, with few frames
SEED = 7
STRIP_FRAMES = 6
TRUE_HEAD = 1  # in the generator's masks; 0 is the background


def demo(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            parser=named_path,
            metavar="<path>",
            help="Folder to write; must be empty or absent.",
        ),
    ] = Path("demo-out"),
    frames: Annotated[int, typer.Option("--frames", min=1, help="Length of the clip.")] = 48,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = "auto",
    stack: StackOption = "fp32",
    overwrite: OverwriteOption = False,
) -> None:
    """Make a short clip of generated heads, segment it, and write OUT/index.html with video and timings."""
    _check_out(out, overwrite)
    # torch and the decoder take seconds to import: a wrong argument needn't wait for them.
    from fasteomt.data.clip import write_clip
    from fasteomt.demo_page import render
    from fasteomt.predictor import load
    from fasteomt.video import run_video

    clip, index = out / "clip.mp4", out / "index.html"
    _check_targets(out, clip, index, model, overwrite)
    predictor = _Timed(load(model, device=device, stack=stack))
    head = _head_id(predictor)
    out.mkdir(parents=True, exist_ok=True)
    with _bar("making the clip", frames) as progress:
        truth = write_clip(
            clip,
            width=WIDTH,
            height=HEIGHT,
            frames=frames,
            fps=FPS,
            bitrate=BITRATE,
            seed=SEED,
            overwrite=overwrite,
            progress=lambda done, total: progress(done),
        )
    with _bar("segmenting it", frames) as progress:
        summary = run_video(
            cast("Predictor", predictor),
            clip,
            out,
            overwrite=overwrite,
            progress=lambda state: progress(state.frames),
        )
    page = _page(out, clip, truth, predictor, summary, head)
    with atomic_path(index, overwrite=overwrite) as temporary:
        # The command on the page names files, whose names may hold bytes that are no text.
        temporary.write_text(render(page), encoding="utf-8", errors="backslashreplace")
    for name, value in page.facts:
        typer.echo(f"{name:<22} {value}")
    typer.echo(f"\nOpen {index.resolve().as_uri()} in a browser.")


class _Timed:
    """A predictor that also notes how long each frame took, in seconds."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.seconds: list[float] = []

    def predict_rgb(self, frame: np.ndarray, pts: float | None = None) -> Result:
        start = time.perf_counter()
        # The mask it returns is in host memory, so nothing is left running on the GPU.
        result = self._predictor.predict_rgb(frame, pts)
        self.seconds.append(time.perf_counter() - start)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)


def _check_out(out: Path, overwrite: bool) -> None:
    check_folder(out)
    if out.is_dir() and not overwrite and not all(is_temporary(path) for path in out.iterdir()):
        raise InputError(f"--out {out} is not empty: choose another folder or pass --overwrite")


def _check_targets(out: Path, clip: Path, index: Path, model: str, overwrite: bool) -> None:
    """All that is written can be, before the first of it is, and none of it is the model."""
    from fasteomt.video.output import OutputFolder
    from fasteomt.video.run import DEFAULT_SAVE

    files = [clip, clip.with_suffix(".masks.mkv"), index]
    for file in files:
        check_target(file, overwrite=overwrite)
    found = find_replaced([Path(model)], files)
    if found is not None:
        raise InputError(f"--out {out}: {found[1]} is the model: choose another folder")
    OutputFolder(out, clip.stem, "video", DEFAULT_SAVE).check([Path(model)], overwrite=overwrite)


def _head_id(predictor: _Timed) -> int:
    """Id of the model's class 'head', which is what the clip shows."""
    names = predictor.spec.names
    for class_id, name in names.items():
        if name == "head":
            return class_id
    raise InputError(
        f"{predictor.source} has no class 'head' ({', '.join(names.values())}): "
        "the demo's clip shows heads; use fasteomt infer with a video of your own"
    )


@contextmanager
def _bar(description: str, frames: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{description:<16}", total=frames)
        yield lambda done: bar.update(task, completed=done)


def _page(out: Path, clip: Path, truth: Path, predictor: _Timed, summary: Summary, head: int) -> Page:
    """Compare what was written with the clip's true masks, and say everything on one page."""
    import torch

    from fasteomt.capabilities import hardware_name
    from fasteomt.demo_page import Page, StripFrame, outlined
    from fasteomt.metrics import ConfusionMatrix
    from fasteomt.video import open_source, read_masks

    masks = Path(summary.folder) / summary.outputs["masks"]
    shown = set(np.linspace(0, summary.frames_out - 1, STRIP_FRAMES).round().astype(int).tolist())
    confusion = ConfusionMatrix((0, 1))
    areas: list[tuple[float, float]] = []
    strip: list[StripFrame] = []
    with open_source(clip) as source:
        for frame, (_, predicted), (_, true) in zip(
            source, read_masks(masks), read_masks(truth), strict=True
        ):
            is_head, truly = predicted == head, true == TRUE_HEAD
            confusion.update(truly.astype(np.uint8), is_head.astype(np.uint8))
            areas.append((float(is_head.mean()), float(truly.mean())))
            if frame.index in shown:
                union = np.count_nonzero(is_head | truly)
                iou = f"IoU {np.count_nonzero(is_head & truly) / union:.3f}" if union else "no head"
                caption = f"frame {frame.index}, {frame.pts or 0:.2f} s, {iou}"
                strip.append(StripFrame(outlined(frame.rgb, is_head, truly), caption))
    folder = Path(summary.folder).relative_to(out)
    what = {
        "overlay": "the video above",
        "masks": "class ids of every frame, lossless",
        "areas": "pixels and confidence of each class in each frame",
    }
    return Page(
        summary=(
            f"A clip of {summary.frames_out} frames: generated heads on a photo, made on this machine and "
            "segmented by the model below. Its true masks are known exactly, so the result can be checked."
        ),
        video=(folder / summary.outputs["overlay"]).as_posix(),
        strip=strip,
        facts=(
            ("frames", f"{summary.frames_out} of {summary.width}x{summary.height} pixels, none skipped"),
            ("head IoU to the truth", f"{confusion.iou()[1]:.4f} over the whole clip"),
            ("model", f"{summary.model} ({summary.checkpoint})"),
            ("stack", summary.stack),
            ("hardware", hardware_name(predictor.device)),
            ("median per frame", f"{1000 * median(predictor.seconds):.1f} ms, frame in to mask out"),
            ("first frame", f"{1000 * predictor.seconds[0]:.1f} ms"),
            ("whole run", f"{summary.seconds:.1f} s, {summary.fps:.2f} FPS, with decoding and writing"),
            ("software", f"torch {torch.__version__}, PyAV {summary.versions['av']}"),
        ),
        areas=areas,
        files=(
            *(((folder / summary.outputs[key]).as_posix(), text) for key, text in what.items()),
            ((folder / "summary.json").as_posix(), "what was run and what became of it"),
            (clip.name, "the clip"),
            (truth.name, "its true masks, 0 background, 1 head"),
        ),
        command=" ".join(["fasteomt", *sys.argv[1:]]),
    )
