"""A Triton kernel; the queries are folded by `folding`.

A program takes a tile of pixels and goes through the channels in steps. In each, a thread convolves four
channels of a strip of pixels, whose neighbours it loads once, adds up their squares, and hands them, rounded,
to the tensor cores, which add to the products with all queries and with ones. Only sums and products outlive
a step. Borders are read again by the tiles beside, from a cache.

The variance comes from sums of v^2 and of v: whatever mean and deviation are, this loses less in fp32 than
what v lost when it was rounded for the product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.depthwise_masks import Problem
from fasteomt.ops.depthwise_masks.folding import fold as fold
from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.grid import Grid
from fasteomt.ops.grid_kernels import share
from fasteomt.ops.target import Target, lacks_16_bit_gpu

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter knows no instructions
# Channels of a thread: 8 bytes of each pixel that it loads.
RUN = 4


@dataclass(frozen=True)
class Config:
    """Pixels of a tile and of a thread's strip, and channels of a step: powers of two.

    `stages`: steps that are under way at once, the one that is worked on too.
    """

    tile_y: int
    tile_x: int
    strip_y: int
    strip_x: int
    block_k: int
    warps: int
    stages: int

    def shared(self, problem: Problem) -> int:
        """Bytes of shared memory, at most: steps ahead with every strip's neighbours, and what is multiplied.

        At the end results change hands there instead.
        """
        strips = self.tile_y * self.tile_x // (self.strip_y * self.strip_x)
        loaded = (self.strip_y + 2) * (self.strip_x + 2) * strips * 2 + 9 * 4
        queries, pixels = block_of_queries(problem), self.tile_y * self.tile_x
        buffers = self.stages - 1
        steps = self.block_k * (buffers * loaded + (buffers + 1) * queries * 2 + pixels * 2)
        return max(steps, queries * pixels * problem.out_dtype.itemsize)


def block_of_queries(problem: Problem) -> int:
    """Rows of a product: queries and one of ones."""
    return min(max(triton.next_power_of_2(problem.queries + 1), 64), 256)


# By the block of queries, the likely best one first. A thread has 255 registers: 64 for products, up to twice
# as many for the convolution. Large tiles read borders and queries less often; of small ones two programs fit
# a processor of sm_90, and one convolves while the other multiplies.
_CONFIGS = {
    64: ((8, 16, 2, 4, 64, 8, 2), (8, 8, 2, 4, 64, 4, 2), (8, 16, 2, 4, 64, 8, 3)),
    128: (
        (8, 8, 2, 4, 64, 4, 1),
        (8, 8, 2, 4, 64, 4, 2),
        (8, 16, 2, 4, 64, 8, 2),
        (8, 16, 2, 4, 64, 8, 3),
        (8, 8, 2, 2, 64, 8, 2),
    ),
    256: ((8, 8, 2, 2, 64, 8, 2), (8, 8, 2, 2, 64, 8, 1)),
}
# Products of mma.sync need more registers.
_FEW_PRODUCTS = (8, 8, 2, 2, 64, 8, 2)


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.channels % 16:
        return f"{problem.channels} channels are no multiple of 16: use 'reference'"
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """Launch configurations worth timing, the likely best one first."""
    block_q = block_of_queries(problem)
    values = _CONFIGS[block_q] if target.sm == 90 or block_q != 128 else (_FEW_PRODUCTS,)
    block_k = min(64, problem.channels & -problem.channels)  # the largest power of two among its divisors
    found = (replace(Config(*each), block_k=block_k) for each in values)
    return tuple(config for config in found if config.shared(problem) <= target.shared_memory)


@lru_cache
def config_on(device: torch.device, problem: Problem) -> Config:
    return candidates(Target.of(device), problem)[0]


@triton.jit
def widen(x: tl.tensor) -> tl.tensor:
    """To fp32. The compiler takes three instructions for two bfloat16, and this takes two."""
    if COMPILED and x.dtype == tl.bfloat16:
        instructions: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        wide = tl.inline_asm_elementwise(instructions, "=r,=r,r", [x], tl.float32, is_pure=True, pack=2)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def convolve(
    x: tl.tensor,
    taps: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    SIDE: tl.constexpr,
    LEVEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIP_Y: tl.constexpr,
    STRIP_X: tl.constexpr,
) -> tl.tuple:
    """Of strips whose first pixels are (top, left), the convolved pixels, line by line: (strips, channels).

    x: pointers (1, channels) to the crop's first row.
    """
    SIZE: tl.constexpr = SIDE * 2**LEVEL
    sums, factors = tl.tuple(()), tl.tuple(())
    for line in tl.static_range(STRIP_Y + 2):
        for i in tl.static_range(3 * line, 3 * line + 3 if line < 3 else 3 * line):
            factors += (tl.load(taps + i * CHANNELS),)
        y = top - 1 + line
        pixels = tl.tuple(())
        for i in tl.static_range(STRIP_X + 2):
            at = left - 1 + i
            inside = (y >= 0) & (y < SIZE) & (at >= 0) & (at < SIZE)
            row = share(y, SIDE, 2, LEVEL) + share(at, 1, 1, LEVEL)
            pixels += (tl.load(x + (row * CHANNELS)[:, None], mask=inside[:, None], other=0.0),)
        # What this line adds to the strip's lines before it and to those that it begins.
        updated = tl.tuple(())
        for i in tl.static_range(STRIP_Y * STRIP_X):
            if line - i // STRIP_X > 2:
                updated += (sums[i],)
            elif line - i // STRIP_X >= 0:
                total = widen(pixels[i % STRIP_X]) * factors[3 * (line - i // STRIP_X)]
                if line - i // STRIP_X > 0:
                    total += sums[i]
                for dx in tl.static_range(1, 3):
                    tap = factors[3 * (line - i // STRIP_X) + dx]
                    total += widen(pixels[i % STRIP_X + dx]) * tap
                updated += (total,)
        sums = updated
    return sums


@triton.jit
def convolve_multiply(
    x: tl.tensor,
    taps: tl.tensor,
    folded: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    eps: float,
    CROPS: tl.constexpr,
    QUERIES: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVEL: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
    STRIP_Y: tl.constexpr,
    STRIP_X: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RUN: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """DOUBLINGS: log2 of the number of pixels of a strip."""
    SIZE: tl.constexpr = SIDE * 2**LEVEL
    ACROSS: tl.constexpr = (SIZE + TILE_X - 1) // TILE_X
    DOWN: tl.constexpr = (SIZE + TILE_Y - 1) // TILE_Y
    PIXELS: tl.constexpr = TILE_Y * TILE_X
    STRIPS: tl.constexpr = PIXELS // (STRIP_Y * STRIP_X)
    let_next_start()
    tile = tl.program_id(0)
    tile_x = tile % ACROSS * TILE_X
    tile_y = tile // ACROSS % DOWN * TILE_Y
    crop = tile // (ACROSS * DOWN)
    strip = tl.arange(0, STRIPS)
    top = tile_y + strip // (TILE_X // STRIP_X) * STRIP_Y
    left = tile_x + strip % (TILE_X // STRIP_X) * STRIP_X
    k = tl.arange(0, BLOCK_K)
    # A block's last row is of ones, so that products have each pixel's sum among them.
    lane = tl.arange(0, BLOCK_Q)
    ones = lane == BLOCK_Q - 1
    query = tl.program_id(1) * (BLOCK_Q - 1) + lane
    wanted = (query < QUERIES) & ~ones
    row = crop * (QUERIES + 1) + tl.where(ones, QUERIES, query)
    start = crop.to(tl.int64) * (SIZE * SIZE)  # within a crop 32 bits are enough
    left_factor = folded + row[:, None] * CHANNELS + k[None, :]
    x += start * CHANNELS + k[None, :]
    taps += k[None, :]
    products = tl.zeros((BLOCK_Q, PIXELS), tl.float32)
    squares = tl.zeros((PIXELS, BLOCK_K // RUN), tl.float32)
    wait_for_inputs()
    for step in tl.range(0, CHANNELS, BLOCK_K, num_stages=STAGES):
        a = tl.load(left_factor + step, mask=(wanted | ones)[:, None], other=0.0)
        pixels = convolve(x + step, taps + step, top, left, SIDE, LEVEL, CHANNELS, STRIP_Y, STRIP_X)
        # Into the tile's raster order. A thread keeps its values: only their names change.
        for doubling in tl.static_range(DOUBLINGS):
            pairs = tl.tuple(())
            for i in tl.static_range(STRIP_Y * STRIP_X >> (doubling + 1)):
                pairs += (tl.join(pixels[i], pixels[i + (STRIP_Y * STRIP_X >> (doubling + 1))]),)
            pixels = pairs
        shape: tl.constexpr = (TILE_Y // STRIP_Y, TILE_X // STRIP_X, BLOCK_K, STRIP_Y, STRIP_X)
        v = tl.reshape(tl.permute(tl.reshape(pixels[0], shape), (0, 3, 1, 4, 2)), (PIXELS, BLOCK_K))
        runs = tl.reshape(v, (PIXELS, BLOCK_K // RUN, RUN))
        squares += tl.sum(runs * runs, axis=2)
        products = tl.dot(a, tl.trans(v.to(a.dtype)), products)

    mean = tl.sum(tl.where(ones[:, None], products, 0.0), axis=0) / CHANNELS
    variance = tl.sum(squares, axis=1) / CHANNELS - mean * mean
    scale = tl.rsqrt(tl.maximum(variance, 0.0) + eps)
    of_query = sums + crop * QUERIES + query
    of_folded = tl.load(of_query, mask=wanted, other=0.0)
    of_bias = tl.load(of_query + CROPS * QUERIES, mask=wanted, other=0.0)
    logits = (products - mean[None, :] * of_folded[:, None]) * scale[None, :] + of_bias[:, None]
    pixel = tl.arange(0, PIXELS)
    y = tile_y + pixel // TILE_X
    at = tile_x + pixel % TILE_X
    places = out + start * QUERIES + query[:, None] * (SIZE * SIZE) + (y * SIZE + at)[None, :]
    real = wanted[:, None] & ((y < SIZE) & (at < SIZE))[None, :]
    tl.store(places, logits.to(out.dtype.element_ty), mask=real)


def constants(config: Config, problem: Problem) -> dict[str, int]:
    """Of `convolve_multiply`."""
    return {
        "CROPS": problem.grid.crops,
        "QUERIES": problem.queries,
        "CHANNELS": problem.channels,
        "SIDE": problem.grid.side,
        "LEVEL": problem.grid.level,
        "TILE_Y": config.tile_y,
        "TILE_X": config.tile_x,
        "STRIP_Y": config.strip_y,
        "STRIP_X": config.strip_x,
        "DOUBLINGS": (config.strip_y * config.strip_x).bit_length() - 1,
        "BLOCK_Q": block_of_queries(problem),
        "BLOCK_K": config.block_k,
        "RUN": RUN,
        "STAGES": config.stages,
    }


def run(
    x: Tensor,
    taps: Tensor,
    eps: float,
    folded: Tensor,
    sums: Tensor,
    out: Tensor,
    grid: Grid,
    *,
    config: Config | None = None,
) -> None:
    problem = Problem(grid, out.shape[1], x.shape[1], x.dtype, out.dtype)
    config = config or config_on(x.device, problem)
    tiles = triton.cdiv(grid.resolution, config.tile_y) * triton.cdiv(grid.resolution, config.tile_x)
    blocks = triton.cdiv(problem.queries, block_of_queries(problem) - 1)
    convolve_multiply[grid.crops * tiles, blocks](
        x,
        taps,
        folded,
        sums,
        out,
        eps,
        **constants(config, problem),
        num_warps=config.warps,
        **early(),
    )
