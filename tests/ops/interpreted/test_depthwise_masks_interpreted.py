"""The kernels in the interpreter: tiles at borders and across them, several blocks of queries, odd crops, and
channels that dwarf the others."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from fasteomt.ops.depthwise_masks import in_range, reference
from fasteomt.ops.depthwise_norm import reference as depthwise_norm
from fasteomt.ops.grid import Grid
from fasteomt.ops.mask_logits import reference as mask_logits

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize(
    ("grid", "queries", "channels", "config"),
    [
        (Grid(3, 3, 2), 10, 64, (8, 8, 2, 4, 64, 4, 2)),
        (Grid(1, 5, 1), 127, 48, (8, 16, 2, 4, 16, 8, 2)),
        (Grid(2, 5, 0), 130, 32, (4, 4, 2, 2, 32, 4, 1)),
        (Grid(1, 3, 1), 300, 16, (8, 8, 2, 2, 16, 8, 1)),
        (Grid(1, 1, 3), 64, 64, (8, 8, 4, 2, 64, 4, 2)),
    ],
)
@pytest.mark.parametrize("massive", [False, True])
def test_kernels_equal_the_reference(
    grid: Grid, queries: int, channels: int, config: tuple[int, ...], massive: bool
) -> None:
    """Not much worse than with features that are normalised before they are rounded."""
    from fasteomt.ops.depthwise_masks import fused

    torch.manual_seed(0)
    x = torch.randn(grid.pixels, channels) + 0.3
    if massive:
        x[:, 3] *= 1000
    x, q = x.half(), torch.randn(grid.crops * queries, channels).half()
    weight, norm_weight, norm_bias = torch.randn(11, channels).split([9, 1, 1])
    taps, eps = in_range(weight, 1e-5)
    shape = (grid.crops, queries, grid.resolution, grid.resolution)
    sums = torch.full((2, grid.crops * queries), torch.nan)
    results = []
    for module, dtype, options in (
        (fused, torch.float16, {"config": fused.Config(*config)}),
        (reference, torch.float32, {}),
    ):
        folded = torch.full((grid.crops, queries + 1, channels), torch.nan, dtype=dtype)
        out = torch.full(shape, torch.nan)
        module.fold(q, norm_weight[0], norm_bias[0], folded, sums)
        module.run(x, taps, eps, folded, sums, out, grid, **options)
        results.append(out)
    features, plain = torch.empty_like(x), torch.empty(shape)
    depthwise_norm.run(x, weight, norm_weight[0], norm_bias[0], 1e-5, features, grid)
    mask_logits.run(q, features, plain, grid)
    assert error(results[0], results[1]) <= 2 * error(plain, results[1])
