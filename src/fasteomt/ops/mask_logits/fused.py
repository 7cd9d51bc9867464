"""One Triton kernel: a product whose columns are pixels in raster order, gathered from their rows.

A tile is a run of pixels of one crop's image, so results are stored in long runs, and nothing is moved twice.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.grid import Grid
from fasteomt.ops.grid_kernels import share
from fasteomt.ops.mask_logits import Problem
from fasteomt.ops.target import Target, lacks_16_bit_gpu

# Pixels and channels of a tile. Operands take 96 KiB, so two programs fit one processor of sm_90: all 256
# tiles of two crops of 128 x 128 pixels are resident at once.
BLOCK_N, BLOCK_K, STAGES, WARPS = 128, 64, 3, 8


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.channels % BLOCK_K:
        return f"{problem.channels} channels are no multiple of {BLOCK_K}: use 'library'"
    return lacks_16_bit_gpu(target, problem.dtype, use="library")


def block_of_queries(queries: int) -> int:
    """Rows of a tile."""
    return 64 if queries <= 64 else 128


@triton.jit
def multiply(
    queries: tl.tensor,
    features: tl.tensor,
    out: tl.tensor,
    QUERIES: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVEL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    SIZE: tl.constexpr = SIDE * 2**LEVEL
    PIXELS: tl.constexpr = SIZE * SIZE
    let_next_start()
    wait_for_inputs()
    crop = tl.program_id(2)
    # Programs that differ in their queries alone are neighbours, so that they share features in the L2 cache.
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # Beyond the last query and pixel the last ones are computed again, and not stored.
    query = crop * QUERIES + tl.minimum(m, QUERIES - 1)
    pixel = tl.minimum(n, PIXELS - 1)
    row = share(pixel // SIZE, SIDE, 2, LEVEL) + share(pixel % SIZE, 1, 1, LEVEL)
    start = crop.to(tl.int64) * PIXELS
    left = queries + query[:, None] * CHANNELS + k[None, :]
    right = features + start * CHANNELS + row[None, :] * CHANNELS + k[:, None]
    logits = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(CHANNELS // BLOCK_K):
        a = tl.load(left + step * BLOCK_K)
        b = tl.load(right + step * BLOCK_K)
        logits = tl.dot(a, b, logits)
    places = out + start * QUERIES + m[:, None] * PIXELS + n[None, :]
    tl.store(places, logits.to(out.dtype.element_ty), mask=(m < QUERIES)[:, None] & (n < PIXELS)[None, :])


def run(queries: Tensor, features: Tensor, out: Tensor, grid: Grid) -> None:
    count, channels = out.shape[1], queries.shape[1]
    block_m = block_of_queries(count)
    tiles = (triton.cdiv(count, block_m), triton.cdiv(grid.resolution**2, BLOCK_N), grid.crops)
    multiply[tiles](
        queries,
        features,
        out,
        QUERIES=count,
        CHANNELS=channels,
        SIDE=grid.side,
        LEVEL=grid.level,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        num_warps=WARPS,
        num_stages=STAGES,
        **early(),
    )
