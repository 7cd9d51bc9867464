"""Where block scales lie for block-scaled MMA: tiles of 128 rows x 4 blocks.

cuBLAS documentation, "1D Block Scaling Factors Layout"; torch's `SwizzleType.SWIZZLE_32_4_4`; used by
cuBLASLt from sm_100 on and by CUTLASS's kernels for sm_120. A tile holds 512 bytes, the scale of row r and
block b at `r % 32 * 16 + r // 32 * 4 + b`; tiles follow one another along the blocks first, then along the
rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.errors import InputError

TILE_ROWS = 128
TILE_BLOCKS = 4


def swizzled_size(rows: int, blocks: int) -> int:
    """Bytes of the swizzled scales: whole tiles."""
    return _tiles(rows, TILE_ROWS) * _tiles(blocks, TILE_BLOCKS) * TILE_ROWS * TILE_BLOCKS


def swizzled_index(rows: int, blocks: int, device: torch.device | None = None) -> Tensor:
    """(rows, blocks) int64: where each scale lies in the swizzled ones."""
    row = torch.arange(rows, device=device)[:, None]
    block = torch.arange(blocks, device=device)[None, :]
    tile = row // TILE_ROWS * _tiles(blocks, TILE_BLOCKS) + block // TILE_BLOCKS
    within = row % 32 * 16 + row % TILE_ROWS // 32 * 4 + block % TILE_BLOCKS
    return tile * TILE_ROWS * TILE_BLOCKS + within


def swizzle(scales: Tensor) -> Tensor:
    """(rows, blocks) scales -> (swizzled_size,) of the same dtype; the rest of the last tiles is 0."""
    rows, blocks = scales.shape
    out = scales.new_zeros(swizzled_size(rows, blocks))
    out[swizzled_index(rows, blocks, scales.device)] = scales
    return out


def unswizzle(swizzled: Tensor, rows: int, blocks: int) -> Tensor:
    """Inverse of `swizzle`: (rows, blocks) scales.

    Raises:
        InputError: not of the size that `rows` and `blocks` need.
    """
    size = swizzled_size(rows, blocks)
    if swizzled.shape != (size,):
        raise InputError(
            f"swizzled scales of shape {tuple(swizzled.shape)}: {rows} x {blocks} scales need ({size},)"
        )
    return swizzled[swizzled_index(rows, blocks, swizzled.device)]


def _tiles(count: int, size: int) -> int:
    return -(-count // size)
