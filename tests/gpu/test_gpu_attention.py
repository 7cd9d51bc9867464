"""Attention on a GPU: every implementation against fp32, on real shapes."""

from __future__ import annotations

import pytest
import torch
from gpu_samples import implementation_or_skip, rotation_of
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.ops.attention import Problem, reference
from fasteomt.ops.rope import reference as rope
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

ROWS = [
    Rows(2, 1024, 5),
    Rows(2, 1024, 105),
    Rows(1, 1024, 5),
    Rows(3, 1024, 5),
    Rows(2, 256, 5),
    Rows(3, 256, 105),
]
DTYPES = [torch.bfloat16, torch.float16]


def inputs(problem: Problem) -> tuple[Tensor, Tensor, Rotation | None]:
    """(qkv, out full of NaN, rotation)."""
    torch.manual_seed(0)
    rows, dim = problem.rows, problem.heads * problem.head_dim
    qkv = torch.randn(rows.total, 3 * dim, device="cuda").to(problem.dtype)
    out = torch.full((rows.total, dim), float("nan"), dtype=problem.dtype, device="cuda")
    return qkv, out, rotation_of(rows, problem.head_dim) if problem.rope else None


def rounded(qkv: Tensor, heads: int, rows: Rows) -> Tensor:
    """Attention that rounds its weights and its result to qkv's dtype, and nothing else."""
    q, k, v = qkv.float().unflatten(0, (rows.crops, -1)).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).to(qkv.dtype)
    return (weights.float() @ v).transpose(1, 2).reshape(rows.total, -1).to(qkv.dtype)


def check(name: str, problem: Problem, limit: float = 2, **options: object) -> None:
    """Its error is at most `limit` times that of arithmetic which rounds where 16-bit attention has to."""
    module = implementation_or_skip("attention", name, problem)
    qkv, out, rotation = inputs(problem)
    before, exact, plain = qkv.clone(), qkv.float(), qkv.clone()
    found = module.run(qkv, out, problem.heads, problem.rows, rotation, **options)
    if rotation:
        for tensor in (exact, plain):
            rope.run(tensor, rotation, 2 * out.shape[1], problem.rows)
    truth = reference.run(exact, out.float(), problem.heads, problem.rows)
    allowed = limit * (rounded(plain, problem.heads, problem.rows) - truth).norm()
    assert (found.shape, found.dtype) == (out.shape, problem.dtype)
    assert (found is out) == module.WRITES_OUT
    assert torch.equal(qkv, before)
    assert (found - truth).norm() < allowed


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("name", ["library", "fused", "cute"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [3, 12, 16])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_close_to_the_truth(name: str, rows: Rows, heads: int, dtype: torch.dtype) -> None:
    check(name, Problem(rows, heads, 64, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [3, 12, 16])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_fused_turns_queries_and_keys(rows: Rows, heads: int, dtype: torch.dtype) -> None:
    check("fused", Problem(rows, heads, 64, dtype, rope=True))


@pytest.mark.parametrize("name", ["library", "fused", "cute"])
def test_heads_of_128_features(name: str) -> None:
    check(name, Problem(Rows(2, 1024, 5), 4, 128, torch.bfloat16))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [Rows(2, 1024, 5), Rows(3, 256, 105)], ids=str)
def test_every_candidate_of_fused(rows: Rows, turned: bool) -> None:
    problem = Problem(rows, 12, 64, torch.bfloat16, turned)
    fused = implementation_or_skip("attention", "fused", problem)
    for config in fused.candidates(Target.of(torch.device("cuda")), problem):
        check("fused", problem, config=config)


def test_half_accumulate_loses_little() -> None:
    problem = Problem(Rows(2, 1024, 5), 12, 64, torch.float16, half_accumulate=True)
    fused = implementation_or_skip("attention", "fused", problem)
    config = fused.config(Target.of(torch.device("cuda")), problem)
    assert config.half_accumulate
    check("fused", problem, limit=4, config=config)


@pytest.mark.parametrize("name", ["library", "fused", "cute"])
def test_a_replay_equals_the_call_on_new_inputs(name: str) -> None:
    problem = Problem(Rows(2, 1024, 5), 12, 64, torch.bfloat16)
    module = implementation_or_skip("attention", name, problem)
    qkv, out, _ = inputs(problem)
    replay = capture(lambda: module.run(qkv, out, problem.heads, problem.rows))
    qkv.copy_(torch.randn_like(qkv))
    replay.outputs.fill_(float("nan"))
    found = replay.replay().clone()
    assert torch.equal(found, module.run(qkv, out, problem.heads, problem.rows))
