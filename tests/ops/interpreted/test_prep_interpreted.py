"""The kernel in the interpreter: all layouts, frames larger and smaller than a crop, odd sizes, strides."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.model.tiling import Tiling
from fasteomt.ops.geometry import Geometry
from fasteomt.ops.prep import Problem, reference
from fasteomt.ops.prep.parameters import Colors, parameters

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CASES = [
    ("rgb", 26, 19, 8, 4),  # fewer crops than there is room for; an odd crop's start
    ("rgb", 8, 8, 8, 8),  # as it is
    ("rgb", 25, 31, 3, 3),  # many taps; lines that fill no program
    ("nv12", 19, 33, 8, 4),
    ("nv12", 5, 7, 8, 4),  # smaller than a crop
    ("yuyv", 14, 15, 7, 7),
]


@pytest.mark.parametrize(("layout", "height", "width", "size", "patch"), CASES)
def test_kernel_equals_reference(layout: str, height: int, width: int, size: int, patch: int) -> None:
    from fasteomt.ops.prep import fused

    torch.manual_seed(0)
    tiling = Tiling.of(height, width, size)
    table = Geometry(height, width, tiling.resized, tiling.starts, tiling.axis).table(4)
    bytes_of_pixels = {"rgb": 3 * width, "nv12": width, "yuyv": (width + 1) // 2 * 4}[layout]
    chroma_bytes = (width + 1) // 2 * 2
    strides = (bytes_of_pixels + 3, chroma_bytes + 1)
    # One byte before the frame, so that it isn't aligned, and none behind it.
    frame = torch.randint(256, (1 + (height - 1) * strides[0] + bytes_of_pixels,), dtype=torch.uint8)[1:]
    chroma = torch.randint(256, ((height - 1) // 2 * strides[1] + chroma_bytes,), dtype=torch.uint8)
    colors = None if layout == "rgb" else Colors("bt709", full=False)
    block = parameters(strides, MEAN, STD, colors)
    problem = Problem(4, size, patch, torch.float16, layout)
    out = torch.full((4 * (size // patch) ** 2, 3 * patch * patch), 7.0, dtype=torch.float16)
    expected = out.float()
    planes = (frame, chroma if layout == "nv12" else None)
    fused.run(*planes, table, block, out, problem)
    reference.run(*planes, table, block, expected, problem)
    rounding = torch.finfo(out.dtype).eps / 2
    torch.testing.assert_close(out.float(), expected, rtol=rounding, atol=2e-5)
    assert len(tiling.starts) < 4 and out[-1].eq(7).all()
