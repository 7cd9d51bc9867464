"""The attention kernel in the interpreter: rests of tiles and of blocks, odd crops, turned keys."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.model.reference import rope_periods, rope_tables
from fasteomt.ops.attention import Problem, reference
from fasteomt.ops.rope import reference as rope
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


def attend(
    rows: Rows, heads: int, head_dim: int, turned: bool, dtype: torch.dtype = torch.float16, **config: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the kernel finds, the truth), fp32."""
    from fasteomt.ops.attention import fused

    torch.manual_seed(0)
    qkv = torch.randn(rows.total, 3 * heads * head_dim).to(dtype)
    # Only rows and columns of the result are written.
    around = torch.full((rows.total + 2, heads * head_dim), 7.0, dtype=dtype)
    out = around[1:-1]
    rotation = Rotation.of(rope_tables(rope_periods(head_dim), 4, rows.patches // 4)) if turned else None
    before = qkv.clone()
    assert fused.run(qkv, out, heads, rows, rotation, fused.Config(**config)) is out  # type: ignore[arg-type]
    assert torch.equal(qkv, before)
    assert (around[0] == 7).all() and (around[-1] == 7).all()
    exact = qkv.float()
    if rotation:
        rope.run(exact, rotation, 2 * heads * head_dim, rows)
    return out.float(), reference.run(exact, torch.empty(out.shape), heads, rows)


@pytest.mark.parametrize(
    ("rows", "block_m", "small"),
    [
        (Rows(2, 16, 5), 32, True),  # less than a tile, and one block of keys with a rest
        (Rows(3, 32, 5), 32, True),  # a full tile and a small one, keys that fill no block
        (Rows(2, 32, 5), 32, False),
        (Rows(1, 64, 0), 32, True),  # nothing left over
        (Rows(3, 48, 9), 16, True),  # the rest is as large as a tile
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_equals_the_reference(rows: Rows, block_m: int, small: bool, turned: bool) -> None:
    found, truth = attend(rows, 2, 64, turned, block_m=block_m, block_n=16, warps=4, stages=2, small=small)
    assert (found - truth).norm() < 1e-3 * truth.norm()
    assert (found - truth).abs().max() < 4e-3


def test_heads_of_128_features() -> None:
    found, truth = attend(Rows(2, 16, 5), 1, 128, True, block_m=16, block_n=16, warps=4, stages=2)
    assert (found - truth).norm() < 1e-3 * truth.norm()


def test_half_accumulate_loses_little() -> None:
    config = {"block_m": 16, "block_n": 16, "warps": 4, "stages": 2, "half_accumulate": True}
    found, truth = attend(Rows(2, 16, 5), 2, 64, False, **config)
    assert (found - truth).norm() < 2e-3 * truth.norm()


def test_large_scores_do_not_overflow() -> None:
    from fasteomt.ops.attention import fused

    rows = Rows(1, 32, 5)
    qkv = 40 * torch.randn(rows.total, 3 * 64).half()
    found = fused.run(qkv, torch.empty(rows.total, 64).half(), 1, rows, None, fused.Config(32, 16, 4, 2))
    truth = reference.run(qkv, torch.empty(rows.total, 64), 1, rows)
    assert found.isfinite().all()
    assert (found - truth).norm() < 1e-3 * truth.norm()


def test_default_configuration_runs() -> None:
    from fasteomt.ops.attention import fused

    rows = Rows(2, 128, 5)
    problem = Problem(rows, 1, 64, torch.float16)
    config = fused.config(Target.named("sm_90"), problem)
    qkv = torch.randn(rows.total, 3 * 64).half()
    found = fused.run(qkv, torch.empty(rows.total, 64).half(), 1, rows, None, config)
    truth = reference.run(qkv, torch.empty(rows.total, 64), 1, rows)
    assert (found - truth).norm() < 1e-3 * truth.norm()
