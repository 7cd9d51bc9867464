"""Frames out = frames in, in order, on time, in both videos; and what a run leaves behind."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from clips import RedPredictor, encode, number_in, numbered, picture, read_overlay
from PIL import Image

from fasteomt.checkpoint import Checkpoint
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.predictor import Predictor
from fasteomt.stacks import get_stack
from fasteomt.video import open_source, read_masks, run_video, write
from fasteomt.video.summary import Progress

VFR = [i / 10 for i in range(10)] + [1 + i / 30 for i in range(30)]


def turned(number: int, degrees: int) -> np.ndarray:
    """The picture as a camera held at an angle stores it: turning it counter-clockwise makes it upright."""
    return np.rot90(picture(number), -degrees // 90)


# name -> (file name, number of frames, arguments of `encode`, times)
CLIPS: dict[str, tuple[str, int, dict[str, Any], list[float] | None]] = {
    "1 frame mp4": ("a.mp4", 1, {}, None),
    "1 frame mkv": ("a.mkv", 1, {}, None),
    "2 frames": ("a.mp4", 2, {}, None),
    "3 frames": ("a.mp4", 3, {}, None),
    "B-frames mp4": ("a.mp4", 20, {"options": {"bf": "3", "b_strategy": "0"}}, None),
    "B-frames mkv": ("a.mkv", 20, {"options": {"bf": "3", "b_strategy": "0"}}, None),
    "B-frames avi": ("a.avi", 20, {"options": {"bf": "3", "b_strategy": "0"}}, None),
    "mpeg-ts": ("a.ts", 12, {}, None),
    "raw h264 without times": ("a.h264", 12, {}, None),
    "VFR mp4": ("a.mp4", 40, {"pts": VFR}, VFR),
    "VFR mkv": ("a.mkv", 40, {"pts": VFR}, VFR),
    "105611/500 fps": ("a.mp4", 12, {"fps": Fraction(105611, 500)}, None),
    "30000/1001 fps": ("a.mkv", 12, {"fps": Fraction(30000, 1001)}, None),
    "65x49 yuv444p": ("a.mp4", 3, {"width": 65, "height": 49, "pix_fmt": "yuv444p"}, None),
    "65x49 ffv1 yuv420p": ("a.mkv", 3, {"width": 65, "height": 49, "codec": "ffv1"}, None),
    "21:9": ("a.mp4", 3, {"width": 168, "height": 72}, None),
    "1:3": ("a.mp4", 3, {"width": 64, "height": 192}, None),
    "negative start": ("a.mkv", 6, {"pts": [5 + i / 25 for i in range(6)]}, [i / 25 for i in range(6)]),
}


@pytest.mark.parametrize("name", CLIPS)
def test_frames_out_equal_frames_in_order_and_time(name: str, tmp_path: Path) -> None:
    """Every frame once, in order, within half a frame, at the source's size."""
    file, count, options, times = CLIPS[name]
    options = {"width": 64, "height": 48} | options
    clip = numbered(tmp_path / file, count, **options)
    fps = Fraction(options.get("fps", 25))
    expected = times or [float(i / fps) for i in range(count)]
    predictor = RedPredictor()
    summary = run_video(predictor, clip, tmp_path / "out")

    gaps = np.diff(expected) if count > 1 else [1 / float(fps)]
    tolerance = min(min(gaps) / 2, 0.001)
    masks = list(read_masks(tmp_path / "out/a/masks.mkv"))
    overlay = read_overlay(tmp_path / "out/a/overlay.mp4")
    assert predictor.seen == list(range(count))
    assert [number_in(mask * 255) for _, mask in masks] == list(range(count))
    assert [number_in(rgb[: options["height"], : options["width"], 0]) for _, rgb in overlay] == list(
        range(count)
    )
    assert [pts for pts, _ in masks] == pytest.approx(expected, abs=tolerance)
    assert [pts for pts, _ in overlay] == pytest.approx(expected, abs=tolerance)
    assert masks[0][1].shape == (options["height"], options["width"])
    assert (summary.complete, summary.frames_in, summary.frames_out) == (True, count, count)
    assert (summary.decoded, summary.skipped, summary.problems) == (count, 0, [])
    with av.open(str(tmp_path / "out/a/overlay.mp4")) as container:
        assert container.duration / av.time_base == pytest.approx(summary.duration, abs=1.01 * max(gaps))


def test_clip_with_b_frames_has_them(tmp_path: Path) -> None:
    """The B-frame cases above would test nothing without."""
    clip = numbered(tmp_path / "a.mp4", 20, options={"bf": "3", "b_strategy": "0"})
    with av.open(str(clip)) as container:
        kinds = {frame.pict_type for frame in container.decode(video=0)}
    assert av.video.frame.PictureType.B in kinds


@pytest.mark.parametrize("size", [(400, 2), (720, 63), (4, 300), (63, 289)])
def test_thin_frames(size: tuple[int, int], tmp_path: Path) -> None:
    """Larger than a tiny frame along one side alone."""
    clip = encode(tmp_path / "a.mp4", [np.full((size[1], size[0], 3), 255, np.uint8)], pix_fmt="yuv444p")
    assert run_video(RedPredictor(), clip, tmp_path / "out").complete
    assert next(read_masks(tmp_path / "out/a/masks.mkv"))[1].shape == size[::-1]


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1, 5), (9, 1)])
def test_tiny_frames(size: tuple[int, int], tmp_path: Path) -> None:
    """Masks and overlay exist for every size there is."""
    images = [np.full((size[1], size[0], 3), value, np.uint8) for value in (0, 255)]
    clip = encode(tmp_path / "a.mkv", images, codec="ffv1", pix_fmt="bgr0", options={"slices": "1"})
    assert run_video(RedPredictor(), clip, tmp_path / "out").frames_out == 2
    assert [int(mask.max()) for _, mask in read_masks(tmp_path / "out/a/masks.mkv")] == [0, 1]


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotated_clip_comes_out_upright(degrees: int, suffix: str, tmp_path: Path) -> None:
    """Rotation by the display matrix is applied to frames, masks and overlay, as players show them."""
    images = [turned(number, degrees) for number in range(5)]
    clip = encode(tmp_path / f"a.{suffix}", images, rotation=degrees)
    with open_source(clip) as source:
        frame = next(iter(source))
        assert (source.width, source.height) == (64, 48)
        assert np.abs(frame.rgb.astype(int) - picture(0)).max() < 40
    predictor = RedPredictor()
    summary = run_video(predictor, clip, tmp_path / "out")
    masks = list(read_masks(tmp_path / "out/a/masks.mkv"))
    overlay = read_overlay(tmp_path / "out/a/overlay.mp4")
    assert [number_in(mask * 255) for _, mask in masks] == list(range(5)) == predictor.seen
    assert [number_in(rgb[..., 0]) for _, rgb in overlay] == list(range(5))
    assert overlay[0][1].shape == (48, 64, 3)
    assert [pts for pts, _ in overlay] == pytest.approx([i / 25 for i in range(5)], abs=0.001)
    assert summary.complete


def test_two_sizes_in_one_process_as_in_fresh_ones(tmp_path: Path) -> None:
    """A 532-high clip, then a 530-high one, equal the second alone."""
    tall = numbered(tmp_path / "tall.mp4", 3, 64, 532)
    low = numbered(tmp_path / "low.mp4", 3, 64, 530)
    run_video(RedPredictor(), tall, tmp_path / "one")
    run_video(RedPredictor(), low, tmp_path / "one")
    run_video(RedPredictor(), low, tmp_path / "fresh")
    both = [list(read_masks(tmp_path / folder / "low/masks.mkv")) for folder in ("one", "fresh")]
    assert [m.shape for _, m in both[0]] == [(530, 64)] * 3
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(*both, strict=True))
    assert (tmp_path / "one/low/areas.csv").read_text() == (tmp_path / "fresh/low/areas.csv").read_text()


@pytest.mark.parametrize("stack", ["fp32", "bf16"])
def test_two_sizes_with_a_model(small_checkpoint: Checkpoint, tmp_path: Path, stack: str) -> None:
    """With a network: nothing of the first size is left in the second's results."""
    tall = numbered(tmp_path / "tall.mp4", 2, 96, 532)
    low = numbered(tmp_path / "low.mp4", 2, 96, 530)
    save = ("masks", "areas")

    def fresh() -> Predictor:
        return Predictor(small_checkpoint, stack=get_stack(stack), device=torch.device("cpu"))

    used = fresh()
    run_video(used, tall, tmp_path / "one", save)
    run_video(used, low, tmp_path / "one", save)
    run_video(fresh(), low, tmp_path / "fresh", save)
    both = [list(read_masks(tmp_path / folder / "low/masks.mkv")) for folder in ("one", "fresh")]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(*both, strict=True))
    assert (tmp_path / "one/low/areas.csv").read_text() == (tmp_path / "fresh/low/areas.csv").read_text()


def test_stream_gives_a_result_a_frame(small_checkpoint: Checkpoint, tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 3, 96, 64)
    predictor = Predictor(small_checkpoint, stack=get_stack("fp32"), device=torch.device("cpu"))
    results = list(predictor.stream(clip))
    assert [result.pts for result in results] == pytest.approx([0, 0.04, 0.08])
    assert [result.mask.shape for result in results] == [(64, 96)] * 3


def test_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = numbered(tmp_path / "a.mp4", 1)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        run_video(RedPredictor(), clip, tmp_path / "out")


FULL = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from clips import RedPredictor
from fasteomt.errors import FastEomtError
from fasteomt.video import run_video
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    run_video(RedPredictor(), sys.argv[1], sys.argv[2], save=("masks",))
except FastEomtError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files")
def test_full_disk(tmp_path: Path) -> None:
    """Exit 5 at the frame where the disk is full (here: files can't grow further), masks so far kept."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (96, 128, 3), dtype=np.uint8) for _ in range(200)]
    clip = encode(tmp_path / "a.mkv", images, codec="ffv1", pix_fmt="bgr0")
    script = FULL.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(clip), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "File too large" in done.stdout and done.stdout.count("\n") == 1
    masks = [mask for _, mask in read_masks(tmp_path / "out/a/masks.partial.mkv")]
    assert 100 < len(masks) < 200
    assert all(np.array_equal(m, image[..., 0] > 60) for m, image in zip(masks, images, strict=False))


@pytest.mark.parametrize(
    ("ids", "dtype"), [((0, 255), np.uint8), ((0, 256), np.uint16), ((3, 65535), np.uint16)]
)
def test_ids_come_back_exactly(ids: tuple[int, int], dtype: type, tmp_path: Path) -> None:
    """Ids never wrap, in files either."""
    clip = numbered(tmp_path / "a.mp4", 6)
    run_video(RedPredictor(ids), clip, tmp_path / "out", save=("masks", "masks-png"))
    masks = [mask for _, mask in read_masks(tmp_path / "out/a/masks.mkv")]
    assert masks[5].dtype == dtype
    assert set(np.unique(masks[5])) == set(ids)

    pngs = sorted((tmp_path / "out/a/masks").iterdir())
    assert [p.name for p in pngs] == [f"{i:06d}.png" for i in range(6)]
    assert all(np.array_equal(np.asarray(Image.open(p)), mask) for p, mask in zip(pngs, masks, strict=True))


def test_ids_without_an_image_format_are_refused_first(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 1)
    predictor = RedPredictor((0, 70000))
    with pytest.raises(UnsupportedError, match="70000"):
        run_video(predictor, clip, tmp_path / "out")
    assert predictor.seen == []
    assert not (tmp_path / "out/a").exists()


def test_files_of_a_run(tmp_path: Path) -> None:
    """Names, the areas table, the summary, a browser's needs: index first, yuv420p, BT.709 tags."""
    clip = numbered(tmp_path / "clip.mp4", 4)
    states: list[Progress] = []
    summary = run_video(RedPredictor(), clip, tmp_path / "out", progress=states.append)
    folder = tmp_path / "out/clip"
    assert sorted(p.name for p in folder.iterdir()) == [
        "areas.csv",
        "masks.mkv",
        "overlay.mp4",
        "summary.json",
    ]

    rows = list(csv.DictReader((folder / "areas.csv").open()))
    assert [(r["frame"], r["class_id"], r["class"]) for r in rows[:3]] == [
        ("0", "0", "class0"),
        ("0", "1", "class1"),
        ("1", "0", "class0"),
    ]
    assert (rows[1]["pixels"], rows[1]["confidence"]) == ("0", "")
    assert [float(r["pts"]) for r in rows[::2]] == pytest.approx([0, 0.04, 0.08, 0.12])
    assert all(
        float(a["share"]) + float(b["share"]) == pytest.approx(1)
        for a, b in zip(rows[::2], rows[1::2], strict=True)
    )

    written = json.loads((folder / "summary.json").read_text())
    assert written["complete"] is True
    assert written["reason"] is None
    assert written["outputs"] == {"masks": "masks.mkv", "overlay": "overlay.mp4", "areas": "areas.csv"}
    assert (written["frames_in"], written["frames_out"], written["duration"]) == (4, 4, pytest.approx(0.16))
    assert (written["model"], written["stack"], written["width"], written["height"]) == (
        "red",
        "fp32",
        64,
        48,
    )
    assert summary.outputs == written["outputs"]

    data = (folder / "overlay.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    with av.open(str(folder / "overlay.mp4")) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.pix_fmt, context.colorspace, context.color_range) == (
            "h264",
            "yuv420p",
            1,
            1,
        )

    assert [s.frames for s in states] == [1, 2, 3, 4]
    assert states[-1].fraction == pytest.approx(1.0)
    assert states[0].eta is not None and states[0].eta > 0


def test_overlay_of_odd_size_is_padded(tmp_path: Path) -> None:
    """H.264 needs even sizes; the mask keeps the source's."""
    clip = numbered(tmp_path / "a.mp4", 1, 65, 49, pix_fmt="yuv444p")
    run_video(RedPredictor(), clip, tmp_path / "out")
    assert read_overlay(tmp_path / "out/a/overlay.mp4")[0][1].shape == (50, 66, 3)
    assert next(read_masks(tmp_path / "out/a/masks.mkv"))[1].shape == (49, 65)


def test_missing_encoder_is_found_before_inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 3, nothing decoded, nothing written; other outputs still work."""
    clip = numbered(tmp_path / "a.mp4", 2)
    monkeypatch.setitem(write._ENCODERS, "h264", ("libnothere264", "yuv420p"))
    predictor = RedPredictor()
    with pytest.raises(UnsupportedError, match="libnothere264") as caught:
        run_video(predictor, clip, tmp_path / "out")
    assert caught.value.exit_code == 3
    assert predictor.seen == []
    assert not (tmp_path / "out").exists()
    assert run_video(predictor, clip, tmp_path / "out", save=("masks", "areas")).complete


def test_save_chooses_and_unknown_names_are_refused(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 2)
    run_video(RedPredictor(), clip, tmp_path / "out", save=("areas",))
    assert sorted(p.name for p in (tmp_path / "out/a").iterdir()) == ["areas.csv", "summary.json"]
    with pytest.raises(InputError, match=r"video.*masks, overlay, areas"):
        run_video(RedPredictor(), clip, tmp_path / "out2", save=("video",))


def test_what_a_predictor_has_to_say_is_in_the_summary(tmp_path: Path) -> None:
    predictor = RedPredictor()
    predictor.note = "stack bf16 is unverified"
    clip = numbered(tmp_path / "clip.mp4", 2, width=64, height=48)
    summary = run_video(predictor, clip, tmp_path / "out")
    assert "stack bf16 is unverified" in summary.notes
