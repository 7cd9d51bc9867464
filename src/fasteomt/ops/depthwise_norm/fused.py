"""One Triton kernel: a program takes a tile of pixels with all their channels.

Each pixel of the tile and of its border is loaded once, all before the first is used, and adds to up to nine
sums in registers. Both sums of the LayerNorm run over all pixels of the tile at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.depthwise_norm import Problem
from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.grid import Grid
from fasteomt.ops.grid_kernels import share
from fasteomt.ops.target import Target, lacks_16_bit_gpu


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.channels > 4096:
        return f"{problem.channels} channels: it takes up to 4096"
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


# Of a thread; two programs of 8 warps then fit a processor, so that one computes while the other waits.
REGISTERS = 128


def config(channels: int) -> tuple[int, int, int]:
    """(lines of a tile, pixels of a line, warps): powers of two.

    A thread has four channels: its registers hold the sums of 16 pixels, nine weights and what lies ahead.
    """
    block = triton.next_power_of_2(channels)
    return (4, 4, max(1, block // 128)) if block <= 2048 else (2, 2, 16)


@triton.jit
def load_pixels(
    x: tl.tensor,
    y: tl.tensor,
    left: tl.tensor,
    real: tl.tensor,
    SIDE: tl.constexpr,
    LEVEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    COUNT: tl.constexpr,
) -> tl.tuple:
    """COUNT pixels of line y from `left` on, as they are; zero outside the crop. x: the crop's first row."""
    SIZE: tl.constexpr = SIDE * 2**LEVEL
    pixels = tl.tuple(())
    for i in tl.static_range(COUNT):
        inside = (y >= 0) & (y < SIZE) & (left + i >= 0) & (left + i < SIZE)
        row = share(y, SIDE, 2, LEVEL) + share(left + i, 1, 1, LEVEL)
        pixels += (tl.load(x + row * CHANNELS, mask=real & inside, other=0.0),)
    return pixels


@triton.jit
def add_line(
    sums: tl.tuple,
    pixels: tl.tuple,
    taps: tl.tuple,
    LINE: tl.constexpr,
    COUNT: tl.constexpr,
    TILE_X: tl.constexpr,
) -> tl.tuple:
    """Sums of a tile's pixels after one more LINE: of lines before it and, new, of those that it begins."""
    updated = tl.tuple(())
    for i in tl.static_range(COUNT):
        if LINE - i // TILE_X > 2:
            updated += (sums[i],)
        elif LINE - i // TILE_X >= 0:
            total = pixels[i % TILE_X].to(tl.float32) * taps[3 * (LINE - i // TILE_X)]
            if LINE - i // TILE_X > 0:
                total += sums[i]
            for x in tl.static_range(1, 3):
                total += pixels[i % TILE_X + x].to(tl.float32) * taps[3 * (LINE - i // TILE_X) + x]
            updated += (total,)
    return updated


@triton.jit
def convolve_norm(
    x: tl.tensor,
    weight: tl.tensor,
    norm_weight: tl.tensor,
    norm_bias: tl.tensor,
    out: tl.tensor,
    eps: float,
    SIDE: tl.constexpr,
    LEVEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
    DOUBLINGS: tl.constexpr,
) -> None:
    """DOUBLINGS: log2 of the number of pixels of a tile."""
    SIZE: tl.constexpr = SIDE * 2**LEVEL
    ACROSS: tl.constexpr = (SIZE + TILE_X - 1) // TILE_X
    DOWN: tl.constexpr = (SIZE + TILE_Y - 1) // TILE_Y
    COUNT: tl.constexpr = TILE_Y * TILE_X
    let_next_start()
    wait_for_inputs()
    tile = tl.program_id(0)
    left = tile % ACROSS * TILE_X
    top = tile // ACROSS % DOWN * TILE_Y
    crop = tile // (ACROSS * DOWN)
    columns = tl.arange(0, BLOCK)
    real = columns < CHANNELS
    start = crop.to(tl.int64) * (SIZE * SIZE * CHANNELS)  # within a crop 32 bits are enough
    x += start + columns
    out += start + columns

    lines = tl.tuple(())
    for line in tl.static_range(TILE_Y + 2):
        lines += (load_pixels(x, top - 1 + line, left - 1, real, SIDE, LEVEL, CHANNELS, TILE_X + 2),)
    taps = tl.tuple(())
    for i in tl.static_range(9):
        taps += (tl.load(weight + i * CHANNELS + columns, mask=real, other=0.0),)
    sums = tl.tuple(())
    for line in tl.static_range(TILE_Y + 2):
        sums = add_line(sums, lines[line], taps, line, COUNT, TILE_X)

    # All pixels side by side, (BLOCK, 2, 2, ...), for one reduction instead of many: every thread keeps its
    # own values, and splitting, last join first, brings the pixels back in their order.
    for doubling in tl.static_range(DOUBLINGS):
        pairs = tl.tuple(())
        for i in tl.static_range(COUNT >> (doubling + 1)):
            pairs += (tl.join(sums[2 * i], sums[2 * i + 1]),)
        sums = pairs
    mean = tl.sum(sums[0], axis=0, keep_dims=True) / CHANNELS
    centred = sums[0] - mean
    # Channels beyond the real ones were zero, so each has added mean^2.
    squares = tl.sum(centred * centred, axis=0, keep_dims=True) - (BLOCK - CHANNELS) * mean * mean
    normal = (centred * tl.rsqrt(squares / CHANNELS + eps),)
    for doubling in tl.static_range(DOUBLINGS):
        halves = tl.tuple(())
        for i in tl.static_range(1 << doubling):
            first, second = tl.split(normal[i])
            halves += (first, second)
        normal = halves
    gain = tl.load(norm_weight + columns, mask=real, other=0.0)
    offset = tl.load(norm_bias + columns, mask=real, other=0.0)
    for i in tl.static_range(COUNT):
        y = top + i // TILE_X
        at = left + i % TILE_X
        row = share(y, SIDE, 2, LEVEL) + share(at, 1, 1, LEVEL)
        result = (normal[i] * gain + offset).to(out.dtype.element_ty)
        tl.store(out + row * CHANNELS, result, mask=real & (y < SIZE) & (at < SIZE))


def run(
    x: Tensor, weight: Tensor, norm_weight: Tensor, norm_bias: Tensor, eps: float, out: Tensor, grid: Grid
) -> None:
    channels = x.shape[1]
    tile_y, tile_x, warps = config(channels)
    tiles = triton.cdiv(grid.resolution, tile_y) * triton.cdiv(grid.resolution, tile_x)
    convolve_norm[(grid.crops * tiles,)](
        x,
        weight,
        norm_weight,
        norm_bias,
        out,
        eps,
        SIDE=grid.side,
        LEVEL=grid.level,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        TILE_Y=tile_y,
        TILE_X=tile_x,
        DOUBLINGS=(tile_y * tile_x).bit_length() - 1,
        num_warps=warps,
        maxnreg=REGISTERS,
        **early(),
    )
