"""The tiled layout of block scales is a permutation, and the one that cuBLAS documents."""

from __future__ import annotations

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.formats.scale_layout import swizzle, swizzled_index, swizzled_size, unswizzle

SHAPES = pytest.mark.parametrize(
    ("rows", "blocks"), [(128, 4), (256, 8), (1, 1), (130, 5), (2058, 64), (300, 12)]
)


def test_a_tile_by_hand() -> None:
    """Row by row of the documented picture: rows 0, 32, 64 and 96 lie side by side, each with 4 blocks."""
    tile = torch.arange(512).view(128, 4)
    swizzled = swizzle(tile)
    assert swizzled[:16].tolist() == [0, 1, 2, 3, 128, 129, 130, 131, 256, 257, 258, 259, 384, 385, 386, 387]
    assert swizzled[16:24].tolist() == [4, 5, 6, 7, 132, 133, 134, 135]
    assert swizzled[-4:].tolist() == [508, 509, 510, 511]


def test_tiles_go_along_the_blocks_first() -> None:
    index = swizzled_index(256, 8)
    assert index[0, 0] == 0
    assert index[0, 4] == 512
    assert index[128, 0] == 1024
    assert index[128 + 33, 4 + 2] == 1024 + 512 + 16 + 4 + 2


@SHAPES
def test_it_is_a_bijection(rows: int, blocks: int) -> None:
    index = swizzled_index(rows, blocks).flatten()
    assert index.unique().numel() == rows * blocks
    assert int(index.max()) < swizzled_size(rows, blocks)
    if rows % 128 == 0 and blocks % 4 == 0:
        assert torch.equal(index.sort().values, torch.arange(rows * blocks))


@SHAPES
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_it_comes_back_and_pads_with_zeros(rows: int, blocks: int, dtype: torch.dtype) -> None:
    scales = torch.randint(1, 255, (rows, blocks)).to(dtype)
    swizzled = swizzle(scales)
    assert swizzled.dtype == dtype
    assert torch.equal(unswizzle(swizzled, rows, blocks), scales)
    assert int((swizzled != 0).sum()) == rows * blocks


@SHAPES
def test_it_is_torchs(rows: int, blocks: int) -> None:
    theirs = pytest.importorskip("torch._vendor.quack.mx_utils", reason="torch's own copy of this layout")
    scales = torch.randint(1, 255, (rows, blocks), dtype=torch.uint8)
    assert torch.equal(swizzle(scales), theirs.to_blocked(scales))


def test_a_wrong_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"130 x 5 scales need \(2048,\)"):
        unswizzle(torch.zeros(1024), 130, 5)
