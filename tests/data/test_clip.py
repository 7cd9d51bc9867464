"""The generated clip: size, times, truth in step, motion without jumps."""

from __future__ import annotations

from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from fasteomt.cli.data import _bits, app
from fasteomt.data.clip import PHOTOS, draw_frame, tell, write_clip
from fasteomt.data.photos import SPLITS
from fasteomt.errors import FastEomtError, InputError

SIZE = {"width": 320, "height": 240, "frames": 12, "fps": 25.0, "bitrate": 1_000_000}


def decode(path: Path, layout: str) -> tuple[list[np.ndarray], list[float]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return [frame.to_ndarray(format=layout) for frame in frames], [float(frame.time) for frame in frames]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    return path, write_clip(path, seed=4, **SIZE)  # type: ignore[arg-type]


def test_frames_masks_and_times_are_in_step(clip: tuple[Path, Path]) -> None:
    video, masks = clip
    assert masks.name == "a.masks.mkv"
    assert sorted(path.name for path in video.parent.iterdir()) == ["a.masks.mkv", "a.mp4"]
    frames, times = decode(video, "rgb24")
    truth, truth_times = decode(masks, "gray")
    assert len(frames) == len(truth) == 12
    assert frames[0].shape == (240, 320, 3)
    assert truth[0].shape == (240, 320)
    np.testing.assert_allclose(times, np.arange(12) / 25, atol=1e-3)
    np.testing.assert_allclose(truth_times, times, atol=1e-3)
    assert set(np.unique(truth)) == {0, 1}


def test_masks_are_the_heads_that_were_drawn(clip: tuple[Path, Path]) -> None:
    truth, _ = decode(clip[1], "gray")
    frames, _ = decode(clip[0], "rgb24")
    story = tell(4)
    for index in (0, 6, 11):
        image, mask = draw_frame(story, index / 11, 320, 240)
        assert (truth[index] == mask).all()
        assert np.abs(frames[index] - 255.0 * image).mean() < 8  # H.264 and sensor noise, nothing more


def test_the_file_is_tagged_bt709_yuv420(clip: tuple[Path, Path]) -> None:
    with av.open(str(clip[0])) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.pix_fmt) == ("h264", "yuv420p")
        assert context.colorspace == context.color_primaries == context.color_trc == 1
        assert container.streams.video[0].average_rate == 25
    data = clip[0].read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_same_seed_same_frames_and_masks(clip: tuple[Path, Path], tmp_path: Path) -> None:
    same = write_clip(tmp_path / "b.mp4", seed=4, **SIZE)  # type: ignore[arg-type]
    assert (np.stack(decode(same, "gray")[0]) == np.stack(decode(clip[1], "gray")[0])).all()
    other = write_clip(tmp_path / "c.mp4", seed=5, masks_path=tmp_path / "truth.mkv", **SIZE)  # type: ignore[arg-type]
    assert other == tmp_path / "truth.mkv"
    assert (np.stack(decode(other, "gray")[0]) != np.stack(decode(clip[1], "gray")[0])).any()
    first, again = (draw_frame(tell(4), 0.6, 320, 240)[0] for _ in range(2))
    assert (first == again).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heads_come_and_go_and_move_smoothly(seed: int) -> None:
    story = tell(seed)
    counts, areas = [], []
    for time in np.linspace(0, 1, 40):
        _, mask = draw_frame(story, float(time), 190, 144)
        counts.append(cv2.connectedComponents(mask)[0] - 1)
        areas.append(int(mask.sum()))
    assert counts[0] == 0
    assert max(counts) >= 3
    assert counts[-1] >= 1
    assert np.abs(np.diff(areas)).max() < 0.06 * mask.size
    for actor in story.actors:
        path = np.array(
            [(p.x, p.y, p.height) for p in (actor.pose(t, 190, 144) for t in np.linspace(0, 1, 126))]
        )
        assert np.abs(np.diff(path, axis=0)).max() < 0.05 * 190


def test_the_camera_shows_held_out_photos() -> None:
    assert set(PHOTOS) <= set(SPLITS["valid"])


def test_existing_files_stay(clip: tuple[Path, Path], tmp_path: Path) -> None:
    before = [path.read_bytes() for path in clip]
    with pytest.raises(InputError, match="--overwrite"):
        write_clip(clip[0], **SIZE)  # type: ignore[arg-type]
    (tmp_path / "d.masks.mkv").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"d\.masks\.mkv"):
        write_clip(tmp_path / "d.mp4", **SIZE)  # type: ignore[arg-type]
    assert (tmp_path / "d.masks.mkv").read_bytes() == b"mine"
    assert [path.read_bytes() for path in clip] == before


def test_an_interrupted_clip_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_clip(tmp_path / "e.mp4", progress=stop, **SIZE)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_refused_first(tmp_path: Path) -> None:
    for name in ("h.mp4", "i.masks.mkv"):
        (tmp_path / name).mkdir()
    for name in ("h.mp4", "i.mp4"):
        with pytest.raises(InputError, match="is a folder"):
            write_clip(tmp_path / name, overwrite=True, **SIZE)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.mp4", "i.masks.mkv"]


@pytest.mark.parametrize("name", ["k.mp4", "k.masks.mkv"])
def test_a_clip_that_cannot_take_its_name_leaves_nothing_temporary(tmp_path: Path, name: str) -> None:
    def block(done: int, total: int) -> None:
        if done == total:
            (tmp_path / name).mkdir()

    with pytest.raises(FastEomtError, match=name):
        write_clip(tmp_path / "k.mp4", progress=block, **SIZE)  # type: ignore[arg-type]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "bad",
    [
        {"width": 321},
        {"height": 0},
        {"width": 8194},
        {"frames": 0},
        {"frames": 10**400},
        {"fps": 0.0},
        {"fps": float("inf")},
        {"fps": float("nan")},
        {"fps": 1e12},
        {"fps": 1e-300},
        {"bitrate": 1},
        {"bitrate": 10**30},
        {"seed": -1},
    ],
)
def test_bad_arguments_are_named(bad: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_clip(tmp_path / "f.mp4", **{**SIZE, **bad})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\.mp4"):
        write_clip(tmp_path / "f.avi", **SIZE)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_bitrates_are_read() -> None:
    assert [_bits(text) for text in ("8M", "500k", "1.5m", "96000")] == [
        8_000_000,
        500_000,
        1_500_000,
        96_000,
    ]
    for text in ("", "M", "-3M", "fast", "inf"):
        with pytest.raises(InputError, match="bitrate"):
            _bits(text)


def test_command_line(tmp_path: Path) -> None:
    out = tmp_path / "g.mp4"
    arguments = ["clip", str(out), "--width", "160", "--height", "120", "--frames", "3", "--bitrate", "300k"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert len(decode(out, "rgb24")[0]) == 3
    assert isinstance(CliRunner().invoke(app, arguments).exception, InputError)


@pytest.mark.parametrize("how", ["same", "soft", "hard"])
def test_video_and_masks_of_one_file_are_refused_first(how: str, tmp_path: Path) -> None:
    path, masks = tmp_path / "a.mp4", tmp_path / "m.mkv"
    if how == "same":
        masks = tmp_path / "b/../a.mp4"
        (tmp_path / "b").mkdir()
    else:
        path.write_text("mine")
        masks.symlink_to(path) if how == "soft" else masks.hardlink_to(path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="are one file"):
        write_clip(path, masks_path=masks, overwrite=True, progress=never, **SIZE)  # type: ignore[arg-type]
    assert sorted(tmp_path.iterdir()) == before


def never(done: int, total: int) -> None:
    raise AssertionError("the work began")


@pytest.mark.parametrize("name", ["a.mp4", "a.masks.mkv"])
def test_what_appears_meanwhile_is_left_alone(name: str, tmp_path: Path) -> None:
    def appear(done: int, total: int) -> None:
        (tmp_path / name).write_text("mine")

    with pytest.raises(InputError, match="left alone"):
        write_clip(tmp_path / "a.mp4", progress=appear, **{**SIZE, "frames": 2})  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "value"), [("fps", "x"), ("frames", 2.5), ("width", "64"), ("seed", 1.5), ("bitrate", None)]
)
def test_arguments_that_are_no_numbers_are_named(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} .*: must be a .*number"):
        write_clip(tmp_path / "a.mp4", **{**SIZE, name: value})  # type: ignore[arg-type]
