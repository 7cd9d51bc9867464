"""The reference against the predictor's own steps, and its colors against their definition and FFmpeg's."""

from __future__ import annotations

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.model.tiling import Tiling, crops_of_frame
from fasteomt.ops.geometry import Geometry
from fasteomt.ops.patches import reference as patches
from fasteomt.ops.prep import Problem, reference
from fasteomt.ops.prep.parameters import Colors, parameters
from fasteomt.video.color import RgbConverter

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MATRICES = {"bt601": 5, "bt709": 1, "bt2020": 9}  # ITU-T H.273 MatrixCoefficients
LUMA = {"bt601": (0.299, 0.587), "bt709": (0.2126, 0.7152), "bt2020": (0.2627, 0.678)}


def table_of(tiling: Tiling, max_crops: int) -> Tensor:
    geometry = Geometry(tiling.height, tiling.width, tiling.resized, tiling.starts, tiling.axis)
    return geometry.table(max_crops)


def rgb_of(
    frame: Tensor, chroma: Tensor | None, strides: tuple[int, int], colors: Colors, layout: str, size: int
) -> Tensor:
    """(size, size, 3) in [0, 1]: a frame of one crop of one patch, neither resized nor normalised."""
    out = torch.empty(1, 3 * size * size)
    block = parameters(strides, (0.0,) * 3, (1.0,) * 3, colors)
    problem = Problem(1, size, size, out.dtype, layout)
    reference.run(frame, chroma, table_of(Tiling.of(size, size, size), 1), block, out, problem)
    return out.view(3, size, size).permute(1, 2, 0)


@pytest.mark.parametrize(
    ("height", "width", "size", "patch"),
    [
        (1900, 1440, 512, 16),
        (1440, 1900, 512, 16),
        (512, 512, 512, 32),
        (513, 512, 512, 16),
        (300, 300, 512, 16),  # enlarged
        (65, 49, 32, 8),
        (270, 630, 128, 16),  # three crops
    ],
)
def test_equals_crops_of_frame(height: int, width: int, size: int, patch: int) -> None:
    torch.manual_seed(0)
    tiling = Tiling.of(height, width, size)
    count = len(tiling.starts)
    padded = torch.randint(256, (height, width + 3, 3), dtype=torch.uint8)
    frame = padded[:, :width]
    block = parameters((padded.stride(0), 0), MEAN, STD)
    rows = (size // patch) ** 2
    out = torch.full(((count + 1) * rows, 3 * patch * patch), 7.0)
    problem = Problem(count + 1, size, patch, out.dtype, "rgb")
    reference.run(frame, None, table_of(tiling, count + 1), block, out, problem)
    expected = torch.empty(count * rows, 3 * patch * patch)
    patches.run(crops_of_frame(frame.permute(2, 0, 1), tiling, MEAN, STD), expected, patch)
    torch.testing.assert_close(out[: count * rows], expected, rtol=0, atol=1e-5)
    assert out[count * rows :].eq(7).all()


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("layout", ["nv12", "yuyv"])
def test_undoes_the_making_of_yuv(matrix: str, full: bool, layout: str) -> None:
    rng = np.random.default_rng(0)
    size = 12
    blocks = rng.random((size // 2, size // 2, 3))
    red, green = LUMA[matrix]
    luma = blocks @ [red, green, 1 - red - green]
    u = (blocks[..., 2] - luma) / (2 * (red + green))
    v = (blocks[..., 0] - luma) / (2 * (1 - red))
    low, luma_range, chroma_range = (0, 255, 255) if full else (16, 219, 224)
    y = torch.from_numpy(np.rint(low + luma_range * luma)).byte()
    uv = torch.from_numpy(np.rint(128 + chroma_range * np.stack([u, v], -1))).clamp(0, 255).byte()
    colors = Colors(matrix, full)
    if layout == "nv12":
        wide = y.repeat_interleave(2, 0).repeat_interleave(2, 1)
        found = rgb_of(wide, uv, (size, size), colors, layout, size)
    else:
        packed = torch.stack([y, uv[..., 0], y, uv[..., 1]], -1).repeat_interleave(2, 0).contiguous()
        found = rgb_of(packed, None, (2 * size, 0), colors, layout, size)
    expected = torch.from_numpy(blocks).float().repeat_interleave(2, 0).repeat_interleave(2, 1)
    # Half a level of Y and of U or V, times what the matrix makes of it.
    torch.testing.assert_close(found, expected, rtol=0, atol=1.8 / luma_range)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("full", [False, True])
def test_colors_are_those_of_decoded_files(matrix: str, full: bool) -> None:
    rng = np.random.default_rng(0)
    size = 32
    frame = av.VideoFrame(size, size, "yuv420p")
    frame.colorspace, frame.color_range = MATRICES[matrix], 2 if full else 1
    planes = []
    for plane in frame.planes:
        padded = rng.integers(0, 256, (plane.height, plane.line_size), dtype=np.uint8)
        plane.update(padded)
        planes.append(torch.from_numpy(padded[:, : plane.width].copy()))
    chroma = torch.stack(planes[1:], -1)
    found = 255 * rgb_of(planes[0], chroma, (size, size), Colors(matrix, full), "nv12", size)
    expected = torch.from_numpy(RgbConverter()(frame)).float()
    assert (found - expected).min() > -0.5 and (found - expected).max() < 3  # it cuts to whole numbers


@pytest.mark.parametrize("layout", ["nv12", "yuyv"])
def test_odd_sizes_keep_their_last_line_and_column(layout: str) -> None:
    torch.manual_seed(0)
    y, uv = torch.randint(256, (5, 5), dtype=torch.uint8), torch.randint(256, (3, 3, 2), dtype=torch.uint8)
    if layout == "nv12":
        found = rgb_of(y, uv, (5, 6), Colors("bt709", True), layout, 5)
    else:
        packed = torch.randint(256, (5, 3, 4), dtype=torch.uint8)
        y[4, 4], uv[2, 2] = packed[4, 2, 0], packed[4, 2, 1::2]
        found = rgb_of(packed, None, (12, 0), Colors("bt709", True), layout, 5)
    red = float(y[4, 4]) + 1.5748 * (float(uv[2, 2, 1]) - 128)
    blue = float(y[4, 4]) + 1.8556 * (float(uv[2, 2, 0]) - 128)
    expected = torch.tensor([red, blue]).div(255).clamp(0, 1)
    torch.testing.assert_close(found[4, 4, ::2], expected, rtol=0, atol=1e-5)


def test_parameters_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match="choose one of bt601"):
        parameters((64, 64), MEAN, STD, Colors("bt470", False))
    with pytest.raises(InputError, match="strides"):
        parameters((1 << 24, 0), MEAN, STD)
