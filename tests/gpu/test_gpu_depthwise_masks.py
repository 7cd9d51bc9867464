"""Convolution, LayerNorm and mask logits at once on a GPU, against the reference and the two ops in turn."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from gpu_samples import distance
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.errors import UnsupportedError
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
NAMES = ("fused", "cuda")


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


def module_for(name: str, problem: Problem) -> ModuleType:
    """The implementation, if it can do this on this GPU."""
    try:
        return implementation("depthwise_masks", name, Target.of(torch.device("cuda")), problem)
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("grid", "queries", "channels"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_no_worse_than_two_ops(
    name: str, grid: Grid, queries: int, channels: int, dtype: torch.dtype, wide: bool
) -> None:
    out_dtype = torch.float32 if wide else dtype
    sample = Sample(Problem(grid, queries, channels, dtype, out_dtype))
    truth = sample.at_once(reference, torch.float32, sample.masks(torch.float32))
    found = sample.at_once(module_for(name, sample.problem), dtype, sample.masks(out_dtype))
    assert distance(found, truth) <= 2 * distance(sample.in_turn(sample.masks(out_dtype)), truth)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("queries", [50, 100, 119, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_configuration_with_channels_that_dwarf_the_others(
    name: str, queries: int, dtype: torch.dtype
) -> None:
    sample = Sample(Problem(Grid(2, 32, 2), queries, 1024, dtype, torch.float32), massive=3)
    module = module_for(name, sample.problem)
    truth = sample.at_once(reference, torch.float32, sample.masks(torch.float32))
    limit = 2 * distance(sample.in_turn(sample.masks(torch.float32)), truth)
    for config in module.candidates(Target.of(truth.device), sample.problem):
        found = sample.at_once(module, dtype, sample.masks(torch.float32), config=config)
        assert distance(found, truth) <= limit, config


@pytest.mark.parametrize("name", NAMES)
def test_nothing_beyond_the_result_is_written(name: str) -> None:
    problem = Problem(Grid(2, 5, 1), 23, 128, torch.bfloat16, torch.float32)
    sample = Sample(problem)
    module, shape = module_for(name, problem), sample.masks(torch.float32).shape
    for config in module.candidates(Target.of(torch.device("cuda")), problem):
        room = torch.full((4 + shape.numel() + 4096,), 77.0, device="cuda")
        sample.at_once(
            module, torch.bfloat16, room[4 : 4 + shape.numel()].view(shape).fill_(torch.nan), config=config
        )
        assert (room[:4] == 77).all() and (room[-4096:] == 77).all(), config
        assert room.isfinite().all(), config


@pytest.mark.parametrize("name", NAMES)
def test_repeats_itself(name: str) -> None:
    sample = Sample(Problem(Grid(2, 32, 2), 100, 1024, torch.bfloat16, torch.float32))
    module = module_for(name, sample.problem)
    first = sample.at_once(module, torch.bfloat16, sample.masks(torch.float32))
    for _ in range(20):
        again = sample.at_once(module, torch.bfloat16, sample.masks(torch.float32))
        assert torch.equal(again, first)


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_computes_with_what_is_there_by_then(name: str) -> None:
    problem = Problem(Grid(2, 32, 1), 100, 768, torch.bfloat16, torch.bfloat16)
    sample = Sample(problem)
    module, (taps, eps) = module_for(name, problem), in_range(sample.taps, EPS)
    folded = torch.empty(2, 101, 768, dtype=torch.bfloat16, device="cuda")
    sums, out = torch.empty(2, 200, device="cuda"), sample.masks(torch.bfloat16)

    def both() -> None:
        module.fold(sample.queries, sample.norm_weight, sample.norm_bias, folded, sums)
        module.run(sample.x, taps, eps, folded, sums, out, problem.grid)

    replay = capture(both)
    sample.x.normal_()
    sample.queries.normal_()
    both()
    expected = out.clone()
    out.fill_(torch.nan)
    replay.replay()
    assert torch.equal(out, expected)
