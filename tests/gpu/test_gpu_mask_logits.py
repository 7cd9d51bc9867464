"""Mask logits on a GPU, against the reference and no worse than the library."""

from __future__ import annotations

import pytest
import torch
from gpu_samples import distance

from fasteomt.engine.graph import capture
from fasteomt.ops import implementation
from fasteomt.ops.grid import Grid
from fasteomt.ops.mask_logits import Problem, reference
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

# grid, queries of a crop, channels
CASES = [
    (Grid(2, 32, 2), 100, 1024),
    (Grid(2, 32, 2), 200, 768),
    (Grid(1, 32, 2), 50, 192),
    (Grid(3, 16, 2), 100, 384),
    (Grid(1, 40, 2), 100, 1280),
    (Grid(1, 16, 3), 100, 4096),
    (Grid(2, 5, 1), 130, 64),
    (Grid(1, 7, 0), 3, 128),
]


@pytest.mark.parametrize(("grid", "queries", "channels"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_no_worse_than_the_library(
    grid: Grid, queries: int, channels: int, dtype: torch.dtype, wide: bool
) -> None:
    torch.manual_seed(0)
    a = torch.randn(grid.crops * queries, channels, device="cuda").to(dtype)
    features = torch.randn(grid.pixels, channels, device="cuda").to(dtype)
    out_dtype = torch.float32 if wide else dtype
    shape = (grid.crops, queries, grid.resolution, grid.resolution)
    truth = torch.empty(shape, device="cuda")
    reference.run(a, features, truth, grid)
    problem = Problem(grid, queries, channels, dtype, out_dtype)
    errors = {}
    for name in ("fused", "library"):
        out = torch.full(shape, torch.nan, dtype=out_dtype, device="cuda")
        implementation("mask_logits", name, Target.of(a.device), problem).run(a, features, out, grid)
        errors[name] = distance(out, truth)
    assert errors["fused"] <= 2 * errors["library"] + 1e-6  # fp32 sums in another order


@pytest.mark.parametrize("name", ["fused", "library"])
def test_a_replay_multiplies_what_is_there_by_then(name: str) -> None:
    grid = Grid(2, 32, 1)
    queries = torch.randn(200, 768, device="cuda").bfloat16()
    features = torch.zeros(grid.pixels, 768, dtype=torch.bfloat16, device="cuda")
    out, expected = torch.empty(2, 2, 100, 64, 64, dtype=torch.bfloat16, device="cuda")
    problem = Problem(grid, 100, 768, features.dtype, out.dtype)
    module = implementation("mask_logits", name, Target.of(features.device), problem)
    replay = capture(lambda: module.run(queries, features, out, grid))
    features.normal_()
    module.run(queries, features, expected, grid)
    replay.replay()
    assert torch.equal(out, expected)
