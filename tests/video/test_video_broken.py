"""Files that break off, have holes, or lie in their headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from clips import RedPredictor, cut, encode, number_in, numbered, picture, zeroed

from fasteomt.errors import InputError, PartialResultError
from fasteomt.video import Summary, open_source, read_masks, run_video
from fasteomt.video.integrity import find_damage

SHORT_GROUPS = {"g": "10", "bf": "2", "b_strategy": "0"}


def noisy(path: Path, count: int = 60) -> Path:
    """Numbered pictures with noise in the lower half, so that a frame has kilobytes to lose."""
    rng = np.random.default_rng(0)
    images = []
    for number in range(count):
        image = picture(number, 128, 96)
        image[48:72] = rng.integers(0, 256, (24, 128, 3), dtype=np.uint8)
        images.append(image)
    front = {"movflags": "+faststart"} if path.suffix == ".mp4" else {}
    return encode(path, images, options=SHORT_GROUPS, container_options=front)


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "avi"])
def test_file_cut_midway(suffix: str, tmp_path: Path) -> None:
    """What was read is kept under a partial name, exit 5, with the counts."""
    broken = cut(noisy(tmp_path / f"whole.{suffix}"), tmp_path / f"cut.{suffix}", 0.55)
    predictor = RedPredictor()
    with pytest.raises(PartialResultError, match="the file ends at byte") as caught:
        run_video(predictor, broken, tmp_path / "out")
    assert caught.value.exit_code == 5
    folder = tmp_path / "out/cut"
    summary = json.loads((folder / "summary.json").read_text())
    masks = [(pts, number_in(mask * 255)) for pts, mask in read_masks(folder / "masks.partial.mkv")]
    kept = len(masks)
    assert 20 <= kept < 60
    assert [number for _, number in masks] == list(range(kept)) == predictor.seen
    assert [pts for pts, _ in masks] == pytest.approx([i / 25 for i in range(kept)], abs=0.001)
    with av.open(str(folder / "overlay.partial.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == kept
    assert (summary["complete"], summary["frames_in"], summary["frames_out"]) == (False, kept, kept)
    assert summary["decoded"] == kept
    assert f"{kept} frames kept" in str(caught.value)


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "avi"])
@pytest.mark.parametrize("start", [0.3, 0.5, 0.7])
def test_bytes_zeroed_midway(suffix: str, start: float, tmp_path: Path) -> None:
    """Goes on behind the hole; decoded and skipped are reported; it is not a success."""
    hole = zeroed(noisy(tmp_path / f"whole.{suffix}"), tmp_path / f"hole.{suffix}", start)
    predictor = RedPredictor()
    with pytest.raises(PartialResultError) as caught:
        run_video(predictor, hole, tmp_path / "out", save=("masks",))
    summary = caught.value.summary
    assert isinstance(summary, Summary)
    masks = list(read_masks(tmp_path / "out/hole/masks.partial.mkv"))
    assert len(masks) == summary.frames_out == summary.decoded < 60
    assert summary.problems and not summary.complete
    assert [pts for pts, _ in masks] == sorted({pts for pts, _ in masks})
    if suffix == "mp4":
        # The index says where every packet is, so that each loss is counted.
        assert summary.decoded + summary.skipped == 60
    # The first and the last frames are there and undamaged.
    assert predictor.seen[:5] == [0, 1, 2, 3, 4]
    assert predictor.seen[-5:] == [55, 56, 57, 58, 59]


def test_mp4_cut_before_its_index(tmp_path: Path) -> None:
    whole = numbered(tmp_path / "whole.mp4", 30)
    with pytest.raises(InputError, match="cut before its index"):
        open_source(cut(whole, tmp_path / "cut.mp4", 0.6))


@pytest.mark.parametrize("count", [0, 7, 5000, 0xFFFFFFFF])
def test_frame_count_in_the_header_is_wrong(count: int, tmp_path: Path) -> None:
    """The count in an AVI header, -1 included, changes nothing."""
    clip = numbered(tmp_path / "a.avi", 20)
    data = bytearray(clip.read_bytes())
    # avih: dwTotalFrames is its 5th field; strh: dwLength the one at byte 32.
    struct.pack_into("<I", data, data.index(b"avih") + 8 + 16, count)
    struct.pack_into("<I", data, data.index(b"strh") + 8 + 32, count)
    clip.write_bytes(data)
    predictor = RedPredictor()
    summary = run_video(predictor, clip, tmp_path / "out", save=("masks",))
    assert predictor.seen == list(range(20))
    assert (summary.complete, summary.frames_out) == (True, 20)


@pytest.mark.parametrize("seconds", [0.1, 500.0])
def test_duration_in_the_header_is_wrong(seconds: float, tmp_path: Path) -> None:
    """A Matroska duration and frame count that are not the stream's change nothing."""
    clip = numbered(tmp_path / "a.mkv", 20, metadata={"NUMBER_OF_FRAMES": "3"})
    data = bytearray(clip.read_bytes())
    struct.pack_into(">d", data, data.index(b"\x44\x89\x88") + 3, seconds * 1000)
    clip.write_bytes(data)
    with open_source(clip) as source:
        assert source.duration == pytest.approx(seconds, abs=0.01)
    predictor = RedPredictor()
    fractions: list[float | None] = []
    summary = run_video(predictor, clip, tmp_path / "out", progress=lambda p: fractions.append(p.fraction))
    assert predictor.seen == list(range(20))
    assert summary.complete
    assert all(fraction is not None and 0 <= fraction <= 1 for fraction in fractions)


def test_recording_that_begins_within_a_group(tmp_path: Path) -> None:
    """Packets before the first key frame are no loss: broadcasts begin like that."""
    clip = numbered(tmp_path / "a.ts", 40, options={"g": "15", "bf": "0", "sc_threshold": "0"})
    with av.open(str(clip)) as container:
        positions = [packet.pos for packet in container.demux(video=0) if packet.size]
    late = tmp_path / "late.ts"
    data = clip.read_bytes()
    tables = data[: 188 * 3]
    late.write_bytes(tables + data[positions[5] :])
    with open_source(late) as source:
        seen = [number_in(frame.rgb[..., 0]) for frame in source]
        assert seen == list(range(15, 40))
        assert source.skipped == 10
        assert source.problems == []
        assert any("first complete picture" in note for note in source.notes)


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "avi", "webm", "mov"])
def test_whole_files_are_found_whole(suffix: str, tmp_path: Path) -> None:
    codec = "libvpx" if suffix == "webm" else "libx264"
    clip = numbered(tmp_path / f"a.{suffix}", 12, codec=codec)
    with av.open(str(clip)) as container:
        name = container.format.name
    assert find_damage(clip, name) is None
    assert find_damage(cut(clip, tmp_path / "cut", 0.9), name) is not None


def test_matroska_of_unknown_size_is_whole(tmp_path: Path) -> None:
    """Live recordings have no sizes in the headers of their segment and clusters."""
    clip = numbered(tmp_path / "a.mkv", 12)
    data = bytearray(clip.read_bytes())
    for element in (b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"):
        at = data.index(element) + 4
        length = 9 - data[at].bit_length()
        data[at : at + length] = ((1 << 7 * length + 1) - 1).to_bytes(length, "big")
    clip.write_bytes(data)
    assert find_damage(clip, "matroska,webm") is None
    with open_source(clip) as opened:
        assert [number_in(frame.rgb[..., 0]) for frame in opened] == list(range(12))
        assert opened.problems == []
