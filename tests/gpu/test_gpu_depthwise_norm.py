"""Depthwise convolution and LayerNorm on a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch
from gpu_samples import distance

from fasteomt.engine.graph import capture
from fasteomt.ops import implementation
from fasteomt.ops.depthwise_norm import Problem, reference
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

CASES = [
    (Grid(2, 32, 1), 1024),
    (Grid(2, 32, 2), 1024),
    (Grid(2, 32, 2), 768),
    (Grid(2, 32, 2), 192),
    (Grid(3, 16, 2), 384),
    (Grid(1, 40, 2), 1280),
    (Grid(1, 16, 3), 1024),
    (Grid(1, 32, 2), 4096),
    (Grid(2, 5, 1), 768),  # tiles across the border
    (Grid(1, 7, 0), 1024),
]


@pytest.mark.parametrize(("grid", "channels"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_the_reference(grid: Grid, channels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(grid.pixels, channels, device="cuda") + 0.5).to(dtype)
    weight = torch.randn(9, channels, device="cuda")
    norm_weight, norm_bias = torch.randn(2, channels, device="cuda")
    problem = Problem(grid, channels, dtype)
    fused = implementation("depthwise_norm", "fused", Target.of(x.device), problem)
    out, truth = torch.full_like(x, torch.nan), torch.empty_like(x, dtype=torch.float32)
    fused.run(x, weight, norm_weight, norm_bias, 1e-5, out, grid)
    reference.run(x, weight, norm_weight, norm_bias, 1e-5, truth, grid)
    assert distance(out, truth) <= 2 * distance(truth.to(dtype), truth)


def test_a_replay_convolves_what_is_there_by_then() -> None:
    grid = Grid(2, 32, 1)
    x = torch.zeros(grid.pixels, 1024, dtype=torch.bfloat16, device="cuda")
    out, expected = torch.empty_like(x), torch.empty_like(x)
    weight = torch.randn(9, 1024, device="cuda")
    norm_weight, norm_bias = torch.randn(2, 1024, device="cuda")
    problem = Problem(grid, 1024, x.dtype)
    fused = implementation("depthwise_norm", "fused", Target.of(x.device), problem)
    replay = capture(lambda: fused.run(x, weight, norm_weight, norm_bias, 1e-5, out, grid))
    x.normal_()
    fused.run(x, weight, norm_weight, norm_bias, 1e-5, expected, grid)
    replay.replay()
    assert torch.equal(out, expected)
