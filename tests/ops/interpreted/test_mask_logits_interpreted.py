"""The kernel in the interpreter: queries and pixels that fill no tile, several tiles, odd crops."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.ops.grid import Grid
from fasteomt.ops.mask_logits import reference

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


@pytest.mark.parametrize(
    ("grid", "queries", "channels"),
    [(Grid(3, 3, 2), 10, 64), (Grid(1, 5, 1), 130, 128), (Grid(2, 5, 0), 64, 64)],
)
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_kernel_equals_reference(grid: Grid, queries: int, channels: int, out_dtype: torch.dtype) -> None:
    from fasteomt.ops.mask_logits import fused

    torch.manual_seed(0)
    a = torch.randn(grid.crops * queries, channels).half()
    features = torch.randn(grid.pixels, channels).half()
    out, expected = torch.zeros(2, grid.crops, queries, grid.resolution, grid.resolution, dtype=out_dtype)
    fused.run(a, features, out, grid)
    reference.run(a, features, expected, grid)
    tolerance = 2e-3 if out_dtype == torch.float16 else 1e-5
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=1e-4)
