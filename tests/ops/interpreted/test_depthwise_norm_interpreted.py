"""The kernel in the interpreter: tiles at borders and across them, odd crops, channels that fill no block."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.ops.depthwise_norm import reference
from fasteomt.ops.grid import Grid

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


@pytest.mark.parametrize(
    ("grid", "channels"),
    [(Grid(3, 2, 2), 16), (Grid(1, 3, 1), 24), (Grid(2, 5, 0), 8), (Grid(1, 1, 3), 8), (Grid(1, 2, 1), 2056)],
)
def test_kernel_equals_reference(grid: Grid, channels: int) -> None:
    from fasteomt.ops.depthwise_norm import fused

    torch.manual_seed(0)
    x = (torch.randn(grid.pixels, channels) + 1).half()
    weight, norm_weight, norm_bias = torch.randn(11, channels).split([9, 1, 1])
    out, expected = torch.zeros(2, grid.pixels, channels, dtype=torch.float16)
    for implementation, result in ((fused, out), (reference, expected)):
        implementation.run(x, weight, norm_weight[0], norm_bias[0], 1e-5, result, grid)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
