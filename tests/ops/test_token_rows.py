"""Every token has one row."""

from __future__ import annotations

import pytest
import torch

from fasteomt.ops.rows import Rows

ROWS = [
    Rows(1, 1024, 5),
    Rows(2, 1024, 5),
    Rows(3, 1024, 105),
    Rows(4, 256, 5),
    Rows(2, 1600, 5),
    Rows(5, 16, 7),
]


@pytest.mark.parametrize("rows", ROWS)
def test_every_row_is_a_patch_or_an_extra_of_one_crop(rows: Rows) -> None:
    patch = rows.patch_of_row()
    assert len(patch) == rows.total
    for crop in range(rows.crops):
        own = patch[crop * rows.tokens : (crop + 1) * rows.tokens]
        assert own[own >= 0].tolist() == list(range(rows.patches))
        extras = torch.arange(rows.extras) + rows.extra_start(crop)
        assert (patch[extras] == -1).all()
        assert extras[0] // rows.tokens == crop == extras[-1] // rows.tokens
