"""Every token has one row; tiles cover each row once, and patches evenly."""

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


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [16, 64, 128])
def test_tiles_cover_each_row_once(rows: Rows, size: int) -> None:
    tiles = rows.tiles(size)
    covered = [row for start, count in tiles for row in range(start, start + count)]
    assert sorted(covered) == list(range(rows.total))
    assert max(count for _, count in tiles) <= size


def test_two_crops_leave_one_small_tile() -> None:
    tiles = Rows(2, 1024, 5).tiles(128)
    assert len(tiles) == 17
    assert [count for _, count in tiles] == [128] * 16 + [10]
    assert tiles[-1] == (1024, 10)
