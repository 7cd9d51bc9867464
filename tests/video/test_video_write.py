"""The video writer alone: exactness, timing, refusals, temporary files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from fasteomt.errors import InputError, UnsupportedError
from fasteomt.video import VideoWriter, open_source, read_masks
from fasteomt.video.write import time_base_for

RNG = np.random.default_rng(1)


def times(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [frame.time for frame in container.decode(video=0)]


def test_lossless_rgb_comes_back_exactly(tmp_path: Path) -> None:
    frames = RNG.integers(0, 256, (4, 49, 65, 3), dtype=np.uint8)
    with VideoWriter(tmp_path / "a.mkv", 65, 49, 10, lossless=True) as writer:
        for frame in frames:
            writer.write(frame)
    with open_source(tmp_path / "a.mkv") as source:
        assert np.array_equal(np.stack([frame.rgb for frame in source]), frames)


@pytest.mark.parametrize(("dtype", "pix_fmt"), [(np.uint8, "gray"), (np.uint16, "gray16le")])
def test_masks_come_back_exactly(dtype: type, pix_fmt: str, tmp_path: Path) -> None:
    masks = RNG.integers(0, np.iinfo(dtype).max + 1, (3, 49, 65)).astype(dtype)
    with VideoWriter(tmp_path / "a.mkv", 65, 49, 10, "ffv1", pix_fmt=pix_fmt) as writer:
        for mask in masks:
            writer.write(mask)
    found = list(read_masks(tmp_path / "a.mkv"))
    assert np.array_equal(np.stack([mask for _, mask in found]), masks)
    assert found[0][1].dtype == dtype


@pytest.mark.parametrize("fps", [24, Fraction(30000, 1001), Fraction(105611, 500), 29.97, 1, Fraction(1, 2)])
def test_frame_rates(fps: float | Fraction, tmp_path: Path) -> None:
    """Odd rates are exact in MP4 and within a millisecond in Matroska."""
    for suffix, tolerance in (("mp4", 1e-9), ("mkv", 0.00051)):
        path = tmp_path / f"a.{suffix}"
        with VideoWriter(path, 64, 48, fps) as writer:
            for _ in range(5):
                writer.write(np.zeros((48, 64, 3), np.uint8))
        assert times(path) == pytest.approx([i / float(fps) for i in range(5)], abs=tolerance)


def test_time_bases() -> None:
    assert time_base_for(Fraction(30)) == Fraction(1, 90000)
    assert time_base_for(Fraction(105611, 500)) == Fraction(1, 105611)
    assert time_base_for(None) == Fraction(1, 90000)
    for fps in (Fraction(24000, 1001), Fraction(25), Fraction(7, 3)):
        assert (1 / fps / time_base_for(fps)).denominator == 1


def test_times_that_do_not_rise_are_moved(tmp_path: Path) -> None:
    for suffix in ("mp4", "mkv"):
        with VideoWriter(tmp_path / f"a.{suffix}", 64, 48, 25) as writer:
            for pts in (0.0, 0.1, 0.1, 0.05, 0.2):
                writer.write(np.zeros((48, 64, 3), np.uint8), pts)
        found = times(tmp_path / f"a.{suffix}")
        assert len(found) == 5 and found == sorted(set(found))
        assert found[4] == pytest.approx(0.2)


def test_bitrate_is_kept(tmp_path: Path) -> None:
    frames = RNG.integers(0, 256, (50, 96, 128, 3), dtype=np.uint8)
    sizes = {}
    for bitrate in (200_000, 800_000):
        with VideoWriter(tmp_path / "a.mp4", 128, 96, 25, bitrate=bitrate, overwrite=True) as writer:
            for frame in frames:
                writer.write(frame)
        sizes[bitrate] = (tmp_path / "a.mp4").stat().st_size * 8 / 2
    assert sizes[200_000] < 0.6 * sizes[800_000]


def test_a_bitrate_gives_the_same_bytes_every_time(tmp_path: Path) -> None:
    base = RNG.integers(0, 256, (96, 128, 3), dtype=np.uint8)
    encoded = set()
    for run in range(3):
        with VideoWriter(tmp_path / f"{run}.mp4", 128, 96, 25, bitrate=300_000) as writer:
            for shift in range(60):
                writer.write(np.roll(base, (shift, 2 * shift), axis=(0, 1)))
        encoded.add((tmp_path / f"{run}.mp4").read_bytes())
    assert len(encoded) == 1
    # libx264 writes its settings into the file: the one that may make runs differ is off.
    assert b"mbtree=0" in encoded.pop()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="suffix"):
        VideoWriter(tmp_path / "a.xyz", 64, 48)
    with pytest.raises(InputError, match="codec"):
        VideoWriter(tmp_path / "a.mp4", 64, 48, codec="av9")
    with pytest.raises(InputError, match="can't write"):
        VideoWriter(tmp_path / "none/a.mp4", 64, 48)
    with pytest.raises(UnsupportedError, match="refuses 20000x20000"):
        VideoWriter(tmp_path / "a.mp4", 20000, 20000)
    (tmp_path / "a.mp4").write_text("mine")
    with pytest.raises(InputError, match="--overwrite"):
        VideoWriter(tmp_path / "a.mp4", 64, 48)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
    with VideoWriter(tmp_path / "b.mp4", 64, 48) as writer:
        with pytest.raises(InputError, match="frame 0 is 32x48"):
            writer.write(np.zeros((48, 32, 3), np.uint8))
        with pytest.raises(InputError, match="uint8 RGB"):
            writer.write(np.zeros((48, 64, 3), np.float32))
        writer.write(np.zeros((48, 64, 3), np.uint8))


def test_name_appears_when_complete(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("old")
    with pytest.raises(InputError), VideoWriter(tmp_path / "a.mp4", 64, 48, overwrite=True) as writer:
        writer.write(np.zeros((1, 1, 3), np.uint8))
    assert (tmp_path / "a.mp4").read_text() == "old"
    with VideoWriter(tmp_path / "a.mp4", 64, 48, overwrite=True) as writer:
        writer.write(np.zeros((48, 64, 3), np.uint8))
        assert (tmp_path / "a.mp4").read_text() == "old"
    assert times(tmp_path / "a.mp4") == [0.0]
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
