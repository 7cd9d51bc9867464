"""From frames to patches on a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.model.tiling import Tiling
from fasteomt.ops import implementation
from fasteomt.ops.geometry import Geometry
from fasteomt.ops.prep import Problem, reference
from fasteomt.ops.prep.parameters import Colors, parameters
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CASES = [
    (1900, 1440, 512, 16),
    (1440, 1900, 512, 16),
    (1080, 2521, 512, 32),
    (1080, 1920, 640, 16),
    (512, 512, 512, 16),
    (300, 301, 512, 16),
    (65, 49, 1024, 16),
    (700, 500, 518, 14),  # lines and columns that fill no program
    (4320, 7680, 512, 16),
]
LAYOUTS = ["rgb", "nv12", "yuyv"]
Inputs = tuple[Tensor, Tensor | None, Tensor, Tensor]


def made(layout: str, height: int, width: int, size: int, crops: int) -> Inputs:
    """Frame, chroma, table and parameters, on the host. Frames are smooth with noise, and end with memory."""
    tiling = Tiling.of(height, width, size)
    table = Geometry(height, width, tiling.resized, tiling.starts, tiling.axis).table(crops)
    columns = {"rgb": 3 * width, "nv12": width, "yuyv": (width + 1) // 2 * 4}[layout]
    frame = torch.randint(256, (height, columns), dtype=torch.uint8)
    frame[: height // 2, ::7] //= 2
    chroma = torch.randint(256, ((height + 1) // 2, (width + 1) // 2 * 2), dtype=torch.uint8)
    colors = None if layout == "rgb" else Colors("bt601", full=layout == "yuyv")
    block = parameters((columns, chroma.shape[1]), MEAN, STD, colors)
    return frame, chroma if layout == "nv12" else None, table, block


def on_gpu(inputs: Inputs) -> Inputs:
    frame, chroma, table, block = inputs
    return frame.cuda(), chroma.cuda() if chroma is not None else None, table.cuda(), block.cuda()


def check(out: Tensor, inputs: Inputs, problem: Problem) -> None:
    expected = torch.full(out.shape, torch.nan)
    reference.run(*inputs, expected, problem)
    rounding = torch.finfo(out.dtype).eps / 2
    torch.testing.assert_close(out.cpu().float(), expected, rtol=rounding, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize(("height", "width", "size", "patch"), CASES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_the_reference(
    height: int, width: int, size: int, patch: int, layout: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    problem = Problem(4, size, patch, dtype, layout)
    inputs = made(layout, height, width, size, problem.crops)
    out = torch.full((4 * (size // patch) ** 2, 3 * patch * patch), torch.nan, dtype=dtype, device="cuda")
    fused = implementation("prep", "fused", Target.of(out.device), problem)
    fused.run(*on_gpu(inputs), out, problem)
    check(out, inputs, problem)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replay_takes_a_frame_of_another_size(layout: str) -> None:
    torch.manual_seed(0)
    problem = Problem(3, 512, 16, torch.bfloat16, layout)
    bound = on_gpu(made(layout, 1900, 1440, 512, 3))
    out = torch.full((3 * 1024, 768), torch.nan, dtype=torch.bfloat16, device="cuda")
    fused = implementation("prep", "fused", Target.of(out.device), problem)
    replay = capture(lambda: fused.run(*bound, out, problem))
    inputs = made(layout, 720, 1681, 512, 3)  # three crops: all rows are written
    for buffer, values in zip(bound, inputs, strict=True):
        if buffer is not None and values is not None:
            buffer.view(-1)[: values.numel()].copy_(values.view(-1))
    replay.replay()
    check(out, inputs, problem)
