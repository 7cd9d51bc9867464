"""Rotary positions on a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch
from gpu_samples import rotation_of

from fasteomt.engine.graph import capture
from fasteomt.ops import implementation
from fasteomt.ops.rope import Problem, reference
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

ROWS = [Rows(2, 1024, 5), Rows(2, 1024, 105), Rows(1, 1024, 5), Rows(3, 1024, 5), Rows(2, 256, 5)]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (12, 64), (16, 64), (32, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_the_reference(rows: Rows, heads: int, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dim = heads * head_dim
    qkv = torch.randn(rows.total, 3 * dim, device="cuda").to(dtype)
    rotation = rotation_of(rows, head_dim)
    problem = Problem(rows, 3 * dim, head_dim, dtype)
    fused = implementation("rope", "fused", Target.of(qkv.device), problem)
    expected = qkv.clone()
    reference.run(expected, rotation, 2 * dim, rows)
    fused.run(qkv, rotation, 2 * dim, rows)
    # A fused multiply-add may round the fp32 value to the other neighbour.
    torch.testing.assert_close(qkv, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert (qkv != expected).float().mean() < 5e-3


def test_a_replay_turns_what_is_there_by_then() -> None:
    rows = Rows(2, 256, 5)
    rotation = rotation_of(rows, 64)
    qkv = torch.zeros(rows.total, 3 * 192, dtype=torch.bfloat16, device="cuda")
    fused = implementation("rope", "fused", Target.of(qkv.device), Problem(rows, 576, 64, qkv.dtype))
    replay = capture(lambda: fused.run(qkv, rotation, 384, rows))
    qkv.copy_(torch.randn(qkv.shape))
    expected = qkv.clone()
    fused.run(expected, rotation, 384, rows)
    replay.replay()
    assert torch.equal(qkv, expected)
