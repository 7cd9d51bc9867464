"""Convolution, LayerNorm and mask logits at once on a GPU, against the reference and the two ops in turn."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from gpu_samples import distance
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.ops import depthwise_norm, implementation, mask_logits
from fasteomt.ops.depthwise_masks import Problem, in_range, reference
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

# grid, queries of a crop, channels
CASES = [
    (Grid(2, 32, 2), 100, 1024),
    (Grid(2, 32, 2), 101, 768),
    (Grid(2, 32, 2), 200, 768),
    (Grid(1, 32, 2), 50, 192),
    (Grid(3, 16, 2), 100, 384),
    (Grid(1, 40, 2), 100, 1280),
    (Grid(1, 16, 3), 300, 4096),
    (Grid(2, 5, 1), 130, 768),  # tiles across the border
    (Grid(1, 7, 0), 3, 48),
]
EPS = 1e-5


class Sample:
    """Inputs of a problem, and its results by any implementation."""

    def __init__(self, problem: Problem, massive: int = 0) -> None:
        torch.manual_seed(0)
        self.problem, self.grid = problem, problem.grid
        channels, count = problem.channels, problem.grid.crops * problem.queries
        x = torch.randn(self.grid.pixels, channels, device="cuda") + 0.3
        x[:, :massive] *= 1000
        self.x = x.to(problem.dtype)
        self.queries = torch.randn(count, channels, device="cuda").to(problem.dtype)
        self.taps, self.norm_weight, self.norm_bias = (
            one.squeeze(0) for one in torch.randn(11, channels, device="cuda").split([9, 1, 1])
        )

    def masks(self, dtype: torch.dtype) -> Tensor:
        size = self.grid.resolution
        shape = (self.grid.crops, self.problem.queries, size, size)
        return torch.full(shape, torch.nan, dtype=dtype, device="cuda")

    def at_once(self, module: ModuleType, dtype: torch.dtype, out: Tensor, **options: Any) -> Tensor:
        """`dtype`: of the folded queries."""
        crops, count = self.grid.crops, self.problem.queries
        shape = (crops, count + 1, self.problem.channels)
        folded = torch.full(shape, torch.nan, dtype=dtype, device="cuda")
        sums = torch.full((2, crops * count), torch.nan, device="cuda")
        module.fold(self.queries, self.norm_weight, self.norm_bias, folded, sums)
        taps, eps = in_range(self.taps, EPS)
        module.run(self.x, taps, eps, folded, sums, out, self.grid, **options)
        return out

    def in_turn(self, out: Tensor) -> Tensor:
        """With features that are normalised before they are rounded."""
        p, features = self.problem, torch.empty_like(self.x)
        one = depthwise_norm.Problem(p.grid, p.channels, p.dtype)
        other = mask_logits.Problem(p.grid, p.queries, p.channels, p.dtype, p.out_dtype)
        target = Target.of(self.x.device)
        norm = implementation("depthwise_norm", "reference", target, one)
        norm.run(self.x, self.taps, self.norm_weight, self.norm_bias, EPS, features, p.grid)
        implementation("mask_logits", "library", target, other).run(self.queries, features, out, p.grid)
        return out


def fused_for(problem: Problem) -> ModuleType:
    return implementation("depthwise_masks", "fused", Target.of(torch.device("cuda")), problem)


@pytest.mark.parametrize(("grid", "queries", "channels"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_no_worse_than_two_ops(
    grid: Grid, queries: int, channels: int, dtype: torch.dtype, wide: bool
) -> None:
    out_dtype = torch.float32 if wide else dtype
    sample = Sample(Problem(grid, queries, channels, dtype, out_dtype))
    truth = sample.at_once(reference, torch.float32, sample.masks(torch.float32))
    found = sample.at_once(fused_for(sample.problem), dtype, sample.masks(out_dtype))
    assert distance(found, truth) <= 2 * distance(sample.in_turn(sample.masks(out_dtype)), truth)


@pytest.mark.parametrize("queries", [50, 100, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_configuration_with_channels_that_dwarf_the_others(queries: int, dtype: torch.dtype) -> None:
    sample = Sample(Problem(Grid(2, 32, 2), queries, 1024, dtype, torch.float32), massive=3)
    fused = fused_for(sample.problem)
    truth = sample.at_once(reference, torch.float32, sample.masks(torch.float32))
    limit = 2 * distance(sample.in_turn(sample.masks(torch.float32)), truth)
    for config in fused.candidates(Target.of(truth.device), sample.problem):
        found = sample.at_once(fused, dtype, sample.masks(torch.float32), config=config)
        assert distance(found, truth) <= limit, config


def test_a_replay_computes_with_what_is_there_by_then() -> None:
    problem = Problem(Grid(2, 32, 1), 100, 768, torch.bfloat16, torch.bfloat16)
    sample = Sample(problem)
    fused, (taps, eps) = fused_for(problem), in_range(sample.taps, EPS)
    folded = torch.empty(2, 101, 768, dtype=torch.bfloat16, device="cuda")
    sums, out = torch.empty(2, 200, device="cuda"), sample.masks(torch.bfloat16)

    def both() -> None:
        fused.fold(sample.queries, sample.norm_weight, sample.norm_bias, folded, sums)
        fused.run(sample.x, taps, eps, folded, sums, out, problem.grid)

    replay = capture(both)
    sample.x.normal_()
    sample.queries.normal_()
    both()
    expected = out.clone()
    out.fill_(torch.nan)
    replay.replay()
    assert torch.equal(out, expected)
