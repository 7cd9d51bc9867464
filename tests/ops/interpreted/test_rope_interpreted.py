"""The rope kernel in the interpreter: odd crops, heads that don't fill a program, values left alone."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.model.reference import rope_periods, rope_tables
from fasteomt.ops.rope import reference
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


@pytest.mark.parametrize(("rows", "heads"), [(Rows(1, 16, 5), 3), (Rows(2, 16, 5), 17), (Rows(3, 16, 9), 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_equals_the_reference(rows: Rows, heads: int, dtype: torch.dtype, head_dim: int) -> None:
    from fasteomt.ops.rope import fused

    torch.manual_seed(0)
    rotation = Rotation.of(rope_tables(rope_periods(head_dim), 4, 4))
    qkv = torch.randn(rows.total, 3 * heads * head_dim).to(dtype)
    found = qkv.clone()
    reference.run(qkv, rotation, 2 * heads * head_dim, rows)
    fused.run(found, rotation, 2 * heads * head_dim, rows)
    # The interpreter cuts fp32 to bfloat16 where a GPU rounds: a whole last place instead of half of one.
    places = 1 if dtype == torch.bfloat16 else 0.5
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), qkv.float(), rtol=2 * places * eps, atol=2e-6)
