"""Opening, selecting, seeking, timestamps, and what is not a video."""

from __future__ import annotations

import os
import socket
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from clips import RedPredictor, number_in, numbered, picture
from PIL import Image

from fasteomt.errors import InputError
from fasteomt.video import open_source, read_masks, run_video
from fasteomt.video.decode import VideoDecoder
from fasteomt.video.inputs import find_inputs
from fasteomt.video.movie import QUEUE_FRAMES
from fasteomt.video.rotation import apply_matrix
from fasteomt.video.timestamps import Clock


def numbers(spec: object, **selection: float) -> list[tuple[int, float]]:
    with open_source(spec, **selection) as source:  # type: ignore[arg-type]
        return [(number_in(frame.rgb[..., 0]), frame.pts) for frame in source]


# Open and closed groups of pictures, B-frames, and a start that is not zero.
SEEKABLE = {
    "mp4": ("a.mp4", {"options": {"g": "10", "bf": "3", "b_strategy": "0"}}),
    "mp4 open gop": (
        "a.mp4",
        {"options": {"g": "12", "bf": "3", "b_strategy": "0", "x264-params": "open-gop=1"}},
    ),
    "mkv": ("a.mkv", {"options": {"g": "10", "bf": "3", "b_strategy": "0"}}),
    "mkv from 5 s": ("a.mkv", {"options": {"g": "10"}, "pts": [5 + i / 25 for i in range(60)]}),
    "one key frame": ("a.mp4", {"options": {"g": "1000"}}),
    "avi": ("a.avi", {"options": {"g": "10"}}),
    "ts": ("a.ts", {"options": {"g": "10"}}),
}


@pytest.mark.parametrize("name", SEEKABLE)
def test_selection_gives_the_frames_of_the_whole(name: str, tmp_path: Path) -> None:
    """--start, --end and --stride: the same frames and times as picking from a run over everything."""
    file, options = SEEKABLE[name]
    clip = numbered(tmp_path / file, 60, **options)
    whole = numbers(clip)
    assert [number for number, _ in whole] == list(range(60))
    for start, end, stride in [
        (0.4, None, 1),
        (1.0, 1.8, 3),
        (1.21, 2.0, 1),
        (None, 0.5, 2),
        (2.36, None, 1),
    ]:
        chosen = [item for item in whole if (start or 0) <= item[1] and (end is None or item[1] < end)]
        assert numbers(clip, start=start, end=end, stride=stride) == chosen[::stride], (start, end, stride)
        assert chosen


def test_seeking_skips_the_decoding_of_what_comes_before(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 100, options={"g": "10"})
    with open_source(clip, start=3.6) as source:
        assert len(list(source)) == 10
        assert source.decoded < 40


def test_selection_that_makes_no_sense(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 5)
    for selection in (
        {"start": -1.0},
        {"start": 1e18},
        {"stride": 10**20},
        {"start": 2.0, "end": 1.0},
        {"stride": 0},
        {"start": float("nan")},
    ):
        with pytest.raises(InputError):
            open_source(clip, **selection)
    with pytest.raises(InputError, match="no frame from 9 s on"):
        open_source(clip, start=9.0)


def test_properties_of_a_source(tmp_path: Path) -> None:
    with open_source(
        numbered(tmp_path / "clip.mp4", 10, 64, 48, fps=Fraction(30000, 1001)), stride=2
    ) as source:
        assert (source.name, source.width, source.height, source.kind) == ("clip", 64, 48, "video")
        assert source.fps == Fraction(15000, 1001)
        assert source.duration == pytest.approx(10 * 1001 / 30000, abs=0.01)
        frames = list(source)
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]
    assert frames[0].rgb.dtype == np.uint8 and frames[0].rgb.flags.c_contiguous


def test_decoding_stays_a_few_frames_ahead_and_stops(tmp_path: Path) -> None:
    """The queue is bounded; closing early ends the thread."""
    clip = numbered(tmp_path / "a.mkv", 100, codec="ffv1", pix_fmt="bgr0")
    before = threading.active_count()
    source = open_source(clip)
    frames = iter(source)
    next(frames)
    next(frames)
    source.close()
    assert source.decoded < 2 + QUEUE_FRAMES + 40  # the decoder's own threads hold frames too
    assert threading.active_count() == before


def stream_with(base: Fraction, start: int | None, rate: int = 25) -> object:
    class Stream:
        time_base, start_time, average_rate, guessed_rate = base, start, Fraction(rate), None

    return Stream()


def test_times_are_made_to_rise() -> None:
    """Duplicate, falling and missing times are repaired and counted; correct ones stay."""
    clock = Clock(stream_with(Fraction(1, 100), 50), "mp4")  # type: ignore[arg-type]
    frame = av.VideoFrame(16, 16)
    seconds = []
    for pts in (50, 54, 54, 62, 58, 66, None, 74):
        frame.pts = pts
        seconds.append(float(clock.frame(frame)))
    assert seconds == pytest.approx([0, 0.04, 0.06, 0.12, 0.14, 0.16, 0.20, 0.24])
    assert (clock.repaired, clock.missing) == (2, 1)
    assert len(clock.notes()) == 2


def test_duplicate_times_in_a_file(tmp_path: Path) -> None:
    """A muxer that refuses them can't write the file, so a Matroska block's time is patched."""
    clip = numbered(tmp_path / "a.mkv", 6, codec="ffv1", pix_fmt="bgr0")
    data = bytearray(clip.read_bytes())
    with av.open(str(clip)) as container:
        position = [packet.pos for packet in container.demux(video=0) if packet.size][3]
    # SimpleBlock: id A3, size, track number 81, then the time, 16 bits.
    at = data.index(b"\x81\x00\x78", position)
    data[at + 1 : at + 3] = b"\x00\x50"
    clip.write_bytes(data)
    found = numbers(clip)
    assert [number for number, _ in found] == [0, 1, 2, 3, 4, 5]
    assert [pts for _, pts in found] == pytest.approx([0, 0.04, 0.08, 0.10, 0.16, 0.20])


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_all_eight_orientations(degrees: int, mirrored: bool) -> None:
    """Against the definition: each pixel's centre goes where the matrix says, up to a translation."""
    c, s = round(np.cos(np.radians(degrees))), round(np.sin(np.radians(degrees)))
    matrix = np.array([[c, s], [-s, c]]) @ np.diag([-1 if mirrored else 1, 1])
    image = picture(77, 16, 12)
    ys, xs = np.mgrid[:12, :16]
    points = np.stack([xs.ravel(), ys.ravel()], 1) @ matrix
    points -= points.min(0)
    wanted = np.zeros((points[:, 1].max() + 1, points[:, 0].max() + 1, 3), np.uint8)
    wanted[points[:, 1], points[:, 0]] = image[ys.ravel(), xs.ravel()]
    a, b, c, d = (int(value) * 65536 for value in matrix.ravel())
    assert np.array_equal(apply_matrix(image, (a, b, c, d)), wanted)


def test_mirrored_clip(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.set_display_rotation(0, hflip=True)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture(5)[:, ::-1]))))
        container.mux(stream.encode(None))
    assert [number for number, _ in numbers(path)] == [5]


def audio_only(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_what_is_not_a_video(tmp_path: Path) -> None:
    """One line with the file's name, exit code 2."""
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("not a video\n" * 100)
    (tmp_path / "notes.txt").write_text("not a video\n" * 100)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/readme.txt").write_text("x")
    audio_only(tmp_path / "sound.m4a")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n1234")
    cases = {
        "missing.mp4": "no such file",
        "empty.mp4": "empty",
        "text.mp4": "not a video",
        "notes.txt": "not a video",
        "folder": "no videos or images",
        "sound.m4a": "no video stream",
        "*.webm": "matches",
        "broken.png": "not a readable image",
    }
    for name, text in cases.items():
        with pytest.raises(InputError, match=text) as caught:
            open_source(str(tmp_path / name))
        assert name in str(caught.value) and "\n" not in str(caught.value)
        assert caught.value.exit_code == 2
    with pytest.raises(InputError, match="no input"):
        open_source([])
    for empty in ("", [str(tmp_path), ""]):
        with pytest.raises(InputError, match="an input is empty"):
            open_source(empty)


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """Opening a pipe would wait for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.mp4"))
        for name in ("pipe.mp4", "pipe.png"):
            os.mkfifo(tmp_path / name)
        for path in (*tmp_path.iterdir(), Path("/dev/zero")):
            for read in (open_source, lambda path: next(read_masks(path)), VideoDecoder):
                with pytest.raises(InputError, match="not a regular file"):
                    read(path)
        # A folder stands for the files in it.
        with pytest.raises(InputError, match="no videos or images"):
            open_source(tmp_path)


def test_superscript_digits_in_names(tmp_path: Path) -> None:
    for name in ("1\u00b22.mp4", "1.mp4", "10.mp4", "2.mp4"):
        numbered(tmp_path / name, 1)
    assert [one.name for one in find_inputs(tmp_path)] == ["1", "1\u00b22", "2", "10"]


@pytest.mark.parametrize("name", ["...mp4", "..mp4", ".mp4", "....mp4", "...png", "..png", ".. .mp4"])
def test_output_folder_is_always_inside(name: str, tmp_path: Path) -> None:
    """A stem of dots alone would lead to --out itself, or out of it."""
    path = tmp_path / "in" / name
    path.parent.mkdir()
    if name.endswith("png"):
        Image.fromarray(picture(1)).save(path, format="PNG")
    else:
        numbered(tmp_path / "in/plain.mp4", 1).rename(path)
    folder = Path(run_video(RedPredictor(), path, tmp_path / "a/b/out", save=("masks",)).folder)
    assert (folder.resolve().parent, folder.name) == (tmp_path / "a/b/out", name)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "in"]


def test_names_with_special_characters(tmp_path: Path) -> None:
    for name in ("12:30 a.mp4", "50%d.mp4", "[x].mp4", "Kopf ä.mp4"):
        clip = numbered(tmp_path / "plain.mp4", 2)
        assert len(numbers(clip.rename(tmp_path / name))) == 2


def test_folders_globs_and_lists(tmp_path: Path) -> None:
    for name in ("clip10.mp4", "clip2.mp4", ".hidden.mp4"):
        numbered(tmp_path / name, 2)
    (tmp_path / "notes.txt").write_text("x")
    Image.fromarray(picture(3)).save(tmp_path / "thumb.png")
    assert [one.name for one in find_inputs(tmp_path)] == ["clip2", "clip10"]
    assert [one.name for one in find_inputs(str(tmp_path / "clip1*"))] == ["clip10"]
    assert [one.name for one in find_inputs([tmp_path / "thumb.png", tmp_path / "clip2.mp4"])] == [
        "clip2",
        "thumb",
    ]
    # Named twice is meant once.
    assert len(find_inputs([tmp_path, tmp_path / "clip2.mp4"])) == 2
    found = numbers(tmp_path)
    assert [number for number, _ in found] == [0, 1, 0, 1]
    assert [pts for _, pts in found] == pytest.approx([0, 0.04, 0.08, 0.12])


def test_equal_names_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        numbered(tmp_path / folder / "a.mp4", 1)
    with pytest.raises(InputError, match=r"one/a\.mp4 and .*two/a\.mp4 would both be written to 'a'"):
        find_inputs([tmp_path / "one", tmp_path / "two"])


def test_cover_picture_is_not_the_video(tmp_path: Path) -> None:
    """A picture attached to a sound file is not its video stream."""
    sound = audio_only(tmp_path / "sound.m4a")
    cover = tmp_path / "cover.m4a"
    with av.open(str(sound)) as source, av.open(str(cover), "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        picture_stream = target.add_stream("mjpeg", rate=1)
        picture_stream.width, picture_stream.height, picture_stream.pix_fmt = 64, 48, "yuvj420p"
        picture_stream.disposition = av.stream.Disposition.attached_pic
        target.mux(picture_stream.encode(av.VideoFrame.from_ndarray(picture(1)).reformat(format="yuvj420p")))
        target.mux(picture_stream.encode(None))
        for packet in source.demux(audio=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    with pytest.raises(InputError, match="no video stream"):
        open_source(cover)


def test_hidden_vp8_frames_are_no_loss(tmp_path: Path) -> None:
    """VP8 keeps frames that are only referred to in packets of their own; here one is made by its flag."""
    clip, hidden = numbered(tmp_path / "a.webm", 12, codec="libvpx"), tmp_path / "b.webm"
    with av.open(str(clip)) as source, av.open(str(hidden), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for index, packet in enumerate(source.demux(video=0)):
            if packet.dts is not None:
                data = bytearray(bytes(packet))
                if index == 5:
                    data[0] &= ~0x10
                copy = av.Packet(bytes(data))
                copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
                copy.is_keyframe, copy.stream = packet.is_keyframe, stream
                target.mux(copy)
    with open_source(hidden) as opened:
        assert [number_in(frame.rgb[..., 0]) for frame in opened] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert (opened.decoded, opened.skipped, opened.problems) == (11, 0, [])


def test_gif(tmp_path: Path) -> None:
    pictures = [Image.fromarray(picture(i)) for i in (1, 2, 3)]
    pictures[0].save(tmp_path / "b.gif", save_all=True, append_images=pictures[1:], duration=[100, 200, 100])
    assert numbers(tmp_path / "b.gif") == [(1, 0.0), (2, pytest.approx(0.1)), (3, pytest.approx(0.3))]
