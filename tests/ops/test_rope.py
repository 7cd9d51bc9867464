"""The reference turns what the model's own function turns, and nothing else."""

from __future__ import annotations

import pytest
import torch

from fasteomt.model.reference import apply_rope, rope_periods, rope_tables
from fasteomt.ops.rope import reference
from fasteomt.ops.rotation import Rotation, interleave
from fasteomt.ops.rows import Rows


@pytest.mark.parametrize("rows", [Rows(1, 16, 5), Rows(2, 16, 5), Rows(3, 16, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_turns_as_the_model_does(rows: Rows, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads, dim = 2, 64
    tables = rope_tables(rope_periods(dim), 4, 4)
    halves = torch.randn(rows.total, 3 * heads, dim)  # pairs are d and d + D / 2, as in the model
    qkv = interleave(halves.flatten(1).mT, 3 * heads).mT.contiguous().to(dtype)
    before = qkv.clone()
    reference.run(qkv, Rotation.of(tables), 2 * heads * dim, rows)

    turned = halves.clone()
    for crop in range(rows.crops):
        own = slice(rows.patch_start(crop), rows.patch_start(crop) + rows.patches)
        turned[own, : 2 * heads] = apply_rope(halves[own, : 2 * heads].transpose(0, 1), *tables).transpose(
            0, 1
        )
    expected = interleave(turned.flatten(1).mT, 3 * heads).mT.to(dtype)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(qkv, expected, rtol=tolerance, atol=tolerance)
    extras = rows.patch_of_row() < 0
    assert torch.equal(qkv[extras], before[extras])
    assert torch.equal(qkv[:, 2 * heads * dim :], before[:, 2 * heads * dim :])
