"""Frames with their true masks: in step, of the model's ids, and identified."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from gate_samples import write_images

from fasteomt.errors import InputError
from fasteomt.gates import footage
from fasteomt.gates.footage import make_footage, open_footage
from fasteomt.model.spec import ModelSpec
from fasteomt.video import VideoWriter


def write_truth(path: Path, count: int, width: int = 96, height: int = 64) -> Path:
    with VideoWriter(path, width=width, height=height, fps=25, codec="ffv1") as video:
        for index in range(count):
            video.write(np.full((height, width), index, np.uint8), index / 25)
    return path


def write_video(path: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    with VideoWriter(path, width=64, height=64, fps=25, codec="h264", bitrate=500_000) as video:
        for index in range(count):
            video.write(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8), index / 25)
    return path


def test_images_with_truth(tmp_path: Path) -> None:
    found = open_footage(write_images(tmp_path / "clip", 3), write_truth(tmp_path / "masks.mkv", 3))
    frames = list(found.frames())
    assert [frame.index for frame, _ in frames] == [0, 1, 2]
    assert [np.unique(mask).tolist() for _, mask in frames if mask is not None] == [[0], [1], [2]]
    assert found.expected_frames() == 3
    assert found.truth_sha256 == hashlib.sha256((tmp_path / "masks.mkv").read_bytes()).hexdigest()


def test_video_without_truth(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 5)
    found = open_footage(path)
    assert [mask for _, mask in found.frames()] == [None] * 5
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.expected_frames() == 5


def test_digest_of_images_is_of_content_and_order(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "clip", 3)
    before = open_footage(folder).sha256
    (folder / "000.png").rename(folder / "9.png")
    assert open_footage(folder).sha256 != before
    (folder / "9.png").rename(folder / "000.png")
    assert open_footage(folder).sha256 == before


@pytest.mark.parametrize(
    ("count", "match"), [(2, "2 true masks for more frames"), (4, "more true masks than 3")]
)
def test_truth_out_of_step(tmp_path: Path, count: int, match: str) -> None:
    found = open_footage(write_images(tmp_path / "clip", 3), write_truth(tmp_path / "masks.mkv", count))
    with pytest.raises(InputError, match=match):
        list(found.frames())


def test_lost_frames_are_no_clip(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 40)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4000] = bytes(4000)
    path.write_bytes(content)
    with pytest.raises(InputError, match="gates need a whole clip"):
        list(open_footage(path).frames())


def test_one_clip_at_a_time(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / name, 1)
    with pytest.raises(InputError, match="2 inputs: run a gate on one clip at a time"):
        open_footage(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        open_footage(tmp_path / "a.mp4", tmp_path / "none.mkv")


@pytest.mark.parametrize(
    ("ids", "names", "truth"),
    [
        ((0, 1), ("background", "head"), {0, 1}),
        ((3, 5), ("head", "rest"), {3, 5}),
        ((0, 1), ("background", "cat"), None),
        ((0, 1, 2), ("background", "head", "hat"), None),
    ],
)
def test_generated_clip_has_the_models_ids(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_spec: ModelSpec,
    ids: tuple[int, ...],
    names: tuple[str, ...],
    truth: set[int] | None,
) -> None:
    for name, value in (("WIDTH", 96), ("HEIGHT", 64), ("FRAMES", 3), ("BITRATE", 500_000)):
        monkeypatch.setattr(footage, name, value)
    spec = dataclasses.replace(small_spec, class_ids=ids, class_names=names)
    found = make_footage(tmp_path, spec)
    masks = [mask for _, mask in found.frames()]
    if truth is None:
        assert masks == [None] * 3
        return
    seen = set(np.unique(np.stack([mask for mask in masks if mask is not None])).tolist())
    assert seen == truth
    head = ids[names.index("head")]
    assert all((mask == head).mean() < 0.5 for mask in masks)  # the smaller part of each frame
