"""The Hopper attention on a Hopper GPU: all shapes and configurations against fp32, and graph capture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fasteomt.ops.attention import Problem, cuda, reference
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

BF16, FP16 = torch.bfloat16, torch.float16
# Units of 64 queries and 0, 5, 8, 9 or many left over, or less than a unit; one block of keys and several.
PATCHES_AND_EXTRAS = [
    (1024, 5),
    (1024, 105),
    (245, 5),
    (12, 5),
    (1600, 5),
    (64, 0),
    (64, 8),
    (64, 9),
    (16, 0),
]
GUARD, UNTOUCHED = 128, 77.0


@pytest.fixture(scope="module", autouse=True)
def target() -> Target:
    found = Target.of(torch.device("cuda", torch.cuda.current_device()))
    if found.sm != 90:
        pytest.skip("needs a Hopper GPU")
    return found


@pytest.fixture(autouse=True)
def exact_fp32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


class Case:
    """Random inputs, the exact result, and `out` between rows that nobody may touch."""

    def __init__(self, problem: Problem, seed: int = 0, keys: float = 1.0) -> None:
        torch.manual_seed(seed)
        self.problem, self.rows, width = problem, problem.rows, problem.heads * problem.head_dim
        qkv = torch.randn(self.rows.total, 3 * width, device="cuda")
        qkv[:, width : 2 * width] *= keys
        self.qkv = qkv.to(problem.dtype)
        self.room = torch.full(
            (self.rows.total + 2 * GUARD, width), UNTOUCHED, device="cuda", dtype=problem.out_dtype
        )
        self.out = self.room[GUARD:-GUARD]

    def run(self, config: cuda.Config | None = None) -> Tensor:
        return cuda.run(self.qkv, self.out, self.problem.heads, self.rows, config=config)

    def error(self) -> float:
        """Relative to arithmetic that rounds weights and results to 16 bits, and nothing else."""
        heads, dtype = self.problem.heads, self.problem.dtype
        exact = torch.empty(self.out.shape, device="cuda")
        reference.run(self.qkv.float(), exact, heads, self.rows)
        split = self.qkv.float().unflatten(0, (self.rows.crops, -1)).unflatten(2, (3, heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).to(dtype).float()
        rounded = (weights @ v).transpose(1, 2).reshape(exact.shape).to(self.out.dtype)
        return float((self.out - exact).norm() / (rounded - exact).norm())

    def check(self, config: cuda.Config | None = None) -> None:
        before = self.qkv.clone()
        self.out.fill_(float("nan"))
        assert self.run(config) is self.out
        assert self.error() < 2, config
        assert (self.room[:GUARD] == UNTOUCHED).all() and (self.room[-GUARD:] == UNTOUCHED).all()
        assert torch.equal(self.qkv, before)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("heads", [3, 12, 16])
@pytest.mark.parametrize("crops", [1, 2, 3])
@pytest.mark.parametrize("tokens", PATCHES_AND_EXTRAS, ids=str)
def test_close_to_the_truth(tokens: tuple[int, int], crops: int, heads: int, dtype: torch.dtype) -> None:
    Case(Problem(Rows(crops, *tokens), heads, 64, dtype)).check()


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("tokens", PATCHES_AND_EXTRAS, ids=str)
def test_every_candidate(tokens: tuple[int, int], dtype: torch.dtype, target: Target) -> None:
    case = Case(Problem(Rows(2, *tokens), 12, 64, dtype))
    for config in cuda.candidates(target, case.problem):
        case.check(config)


@pytest.mark.parametrize("heads", [12, 16])
def test_results_may_have_another_format(heads: int, target: Target) -> None:
    case = Case(Problem(Rows(2, 1024, 5), heads, 64, FP16, out_dtype=BF16))
    for config in cuda.candidates(target, case.problem):
        case.check(config)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("keys", [8.0, 60.0])
def test_large_scores(keys: float, dtype: torch.dtype, target: Target) -> None:
    """A few keys have nearly all weight, and maxima rise from block to block."""
    case = Case(Problem(Rows(2, 1024, 5), 12, 64, dtype), keys=keys)
    case.qkv[700] *= 20  # a massive activation
    for config in cuda.candidates(target, case.problem):
        case.check(config)


@pytest.mark.parametrize("tokens", [(1024, 5), (1024, 105)], ids=str)
def test_a_crop_spoils_no_other(tokens: tuple[int, int], target: Target) -> None:
    """The first one's last keys are padded: the next one's rows lie there."""
    case = Case(Problem(Rows(2, *tokens), 16, 64, BF16))
    sane, own = case.qkv.clone(), slice(case.rows.tokens)
    for config in cuda.candidates(target, case.problem):
        case.qkv.copy_(sane)
        before = case.run(config)[own].clone()
        case.qkv[case.rows.tokens :] = float("inf")
        assert torch.equal(case.run(config)[own], before), config


def test_a_captured_launch_works_on_new_inputs() -> None:
    case, other = (Case(Problem(Rows(2, 1024, 5), 16, 64, BF16), seed) for seed in range(2))
    case.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run()
    case.qkv.copy_(other.qkv)
    case.out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(case.out, other.run())


def test_repeats_itself() -> None:
    case = Case(Problem(Rows(2, 1024, 5), 16, 64, BF16))
    first = case.run().clone()
    for _ in range(50):
        assert torch.equal(case.run(), first)
