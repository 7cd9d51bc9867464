"""Known colours in every matrix, range, subsampling and depth come out as the RGB they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import picture

from fasteomt.video import VideoWriter, open_source

COLOURS = [
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
    (255, 255, 255),
    (0, 0, 0),
    (128, 128, 128),
    (200, 100, 50),
    (12, 200, 220),
]
# Kr and Kb, and the code point, of ITU-T H.273's matrices.
MATRICES = {"601": (0.299, 0.114, 6), "709": (0.2126, 0.0722, 1), "2020": (0.2627, 0.0593, 9)}
BLOCK = 16


def planes_of(matrix: str, full: bool, bits: int) -> np.ndarray:
    """(3, colours) integer Y, Cb, Cr by H.273, 8.3."""
    kr, kb, _ = MATRICES[matrix]
    r, g, b = np.array(COLOURS).T / 255
    y = kr * r + (1 - kr - kb) * g + kb * b
    cb, cr = (b - y) / (2 * (1 - kb)), (r - y) / (2 * (1 - kr))
    scale, top = 2 ** (bits - 8), 2**bits - 1
    if full:
        values = [y * top, cb * top + 128 * scale, cr * top + 128 * scale]
    else:
        values = [scale * (16 + 219 * y), scale * (128 + 224 * cb), scale * (128 + 224 * cr)]
    return np.rint(values).clip(0, top).astype(int)


def clip_of(
    path: Path, pix_fmt: str, matrix: str, full: bool, tagged: bool = True, height: int = BLOCK
) -> Path:
    """One lossless frame with a block of each colour, its YUV values computed here."""
    bits = 10 if "10" in pix_fmt else 8
    frame = av.VideoFrame(BLOCK * len(COLOURS), height, pix_fmt)
    for plane, values in zip(frame.planes, planes_of(matrix, full, bits), strict=True):
        dtype = np.uint16 if bits > 8 else np.uint8
        pixels = np.zeros((plane.height, plane.line_size // dtype().itemsize), dtype)
        pixels[:, : plane.width] = np.repeat(values, plane.width // len(COLOURS))
        plane.update(pixels.tobytes())
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, pix_fmt
        if tagged:
            stream.codec_context.colorspace = frame.colorspace = MATRICES[matrix][2]
            stream.codec_context.color_range = frame.color_range = 2 if full else 1
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def error_of(path: Path) -> int:
    """Largest difference between the decoded and the meant colours, in levels."""
    with open_source(path) as source:
        rgb = next(iter(source)).rgb
    return int(np.abs(rgb[rgb.shape[0] // 2, BLOCK // 2 :: BLOCK].astype(int) - np.array(COLOURS)).max())


@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(
    "pix_fmt", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"]
)
def test_tagged_colours(pix_fmt: str, matrix: str, full: bool, tmp_path: Path) -> None:
    """By the tags, within 3 levels (8-bit chroma alone costs up to 2)."""
    assert error_of(clip_of(tmp_path / "a.mkv", pix_fmt, matrix, full)) <= 3


def test_wrong_matrix_would_be_noticed(tmp_path: Path) -> None:
    """The test above can fail: BT.601 values tagged BT.709 are far off."""
    clip = clip_of(tmp_path / "a.mkv", "yuv444p", "601", False, tagged=False, height=720)
    assert error_of(clip) > 15


def test_untagged_is_bt601_below_hd_and_bt709_from_there(tmp_path: Path) -> None:
    assert error_of(clip_of(tmp_path / "sd.mkv", "yuv444p", "601", False, tagged=False)) <= 3
    assert error_of(clip_of(tmp_path / "hd.mkv", "yuv444p", "709", False, tagged=False, height=720)) <= 3


@pytest.mark.parametrize(
    ("pix_fmt", "exact"), [("bgr0", True), ("bgra", True), ("rgb48le", False), ("gray", True)]
)
def test_rgb_alpha_and_gray(pix_fmt: str, exact: bool, tmp_path: Path) -> None:
    """RGB stays as it is; alpha is dropped, not blended; gray is full range."""
    image = picture(0b10110100)
    image[0, :, 1] = np.arange(64)
    if pix_fmt == "gray":
        image[:] = image[..., 1:2]
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    if pix_fmt == "bgra":
        bgra = np.dstack([image[..., ::-1], np.full((48, 64), 7, np.uint8)])
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(bgra), format="bgra")
    elif pix_fmt == "gray":
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image[..., 0]), format="gray")
    else:
        frame = frame.reformat(format=pix_fmt)
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with open_source(tmp_path / "a.mkv") as source:
        rgb = next(iter(source)).rgb
    assert np.abs(rgb.astype(int) - image).max() <= (0 if exact else 1)


@pytest.mark.parametrize("size", [(65, 49), (63, 31), (17, 16), (1, 1), (2, 3)])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "yuv420p10le"])
def test_odd_sizes_keep_their_last_row_and_column(
    size: tuple[int, int], pix_fmt: str, tmp_path: Path
) -> None:
    """Every pixel of an evenly coloured frame has the colour, the edges too."""
    width, height = size
    frame = av.VideoFrame(width, height, pix_fmt)
    values = planes_of("601", False, 10 if "10" in pix_fmt else 8)[:, 6]
    for plane, value in zip(frame.planes, values, strict=True):
        dtype = np.uint16 if "10" in pix_fmt else np.uint8
        plane.update(np.full((plane.height, plane.line_size // dtype().itemsize), value, dtype).tobytes())
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25, options={"slices": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with open_source(tmp_path / "a.mkv") as source:
        rgb = next(iter(source)).rgb
    assert rgb.shape == (height, width, 3)
    assert np.abs(rgb.astype(int) - COLOURS[6]).max() <= 3


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_written_colours_come_back(suffix: str, tmp_path: Path) -> None:
    """The writer's H.264 is BT.709, limited, and tagged so."""
    image = np.zeros((BLOCK * 2, BLOCK * len(COLOURS), 3), np.uint8)
    image[:] = np.repeat(COLOURS, BLOCK, axis=0)
    path = tmp_path / f"a.{suffix}"
    with VideoWriter(path, image.shape[1], image.shape[0], 25, crf=1) as writer:
        writer.write(image)
    assert error_of(path) <= 4
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    assert (frame.colorspace, frame.color_range, frame.color_primaries, frame.color_trc) == (1, 1, 1, 1)


def test_hdr_and_unknown_matrices_are_noted(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        frame = av.VideoFrame.from_ndarray(picture(1)).reformat(format="yuv444p")
        stream.codec_context.color_trc = frame.color_trc = 16
        stream.codec_context.colorspace = frame.colorspace = 8
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with open_source(tmp_path / "a.mkv") as source:
        list(source)
        assert any("PQ" in note for note in source.notes)
        assert any("matrix 8" in note for note in source.notes)
        assert source.problems == []
