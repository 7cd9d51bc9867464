"""Kernels of a crop's class scores (K, S, S), from its logits alone: they don't know where the crop lies."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# Mask probabilities below 2^-60 count as that: the reciprocals of two smaller ones, multiplied, overflow.
LIMIT = tl.constexpr(60.0)


@triton.jit
def weigh(
    classes: tl.tensor,
    weights: tl.tensor,
    sums: tl.tensor,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_SUMS: tl.constexpr,
) -> None:
    """Class probabilities of one query, without the last; the first program clears the SUMS as well."""
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    logits = tl.load(classes + row * (CLASSES + 1) + k, mask=k <= CLASSES, other=float("-inf")).to(tl.float32)
    powers = tl.exp(logits - tl.max(logits))
    tl.store(weights + row * CLASSES + k, powers / tl.sum(powers), mask=k < CLASSES)
    if SUMS > 0:
        i = tl.arange(0, BLOCK_SUMS)
        tl.store(sums + i, tl.zeros((BLOCK_SUMS,), tl.int64), mask=(i < SUMS) & (row == 0))


@triton.jit
def sigmoids(a: tl.tensor, b: tl.tensor) -> tl.tuple:
    """Of two arguments times -log2(e), with one reciprocal: the special function unit is what limits."""
    a = 1.0 + tl.exp2(tl.minimum(a, LIMIT))
    b = 1.0 + tl.exp2(tl.minimum(b, LIMIT))
    root = tl.rsqrt(a * b)  # its square costs less than a division, which would care for denormal numbers
    both = root * root
    return both * b, both * a


@triton.jit
def pixels_of_taps(taps: tl.tuple, fraction: tl.tensor, RATIO: tl.constexpr, ROWS: tl.constexpr) -> tl.tuple:
    """-log2(e) times the logits of ROWS by RATIO pixels; fraction: the first row's way to the lower taps."""
    HALF: tl.constexpr = RATIO // 2
    pixels = tl.tuple(())
    tops, steps = tl.tuple(()), tl.tuple(())
    for i in tl.static_range(3):
        top = taps[2 * i].to(tl.float32) * -LOG2E
        tops += (top,)
        steps += (taps[2 * i + 1].to(tl.float32) * -LOG2E - top,)
    for row in tl.static_range(ROWS):
        left = tops[0] + (fraction + row / RATIO) * steps[0]
        middle = tops[1] + (fraction + row / RATIO) * steps[1]
        right = tops[2] + (fraction + row / RATIO) * steps[2]
        to_middle, to_right = middle - left, right - middle
        for x in tl.static_range(HALF):
            pixels += (left + to_middle * ((x + HALF + 0.5) / RATIO),)
        for x in tl.static_range(HALF):
            pixels += (middle + to_right * ((x + 0.5) / RATIO),)
    return pixels


@triton.jit
def score_few(
    masks: tl.tensor,
    weights: tl.tensor,
    scores: tl.tensor,
    QUERIES: tl.constexpr,
    CLASSES: tl.constexpr,
    SIDE: tl.constexpr,
    RATIO: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    UNROLL: tl.constexpr,
) -> None:
    """A thread's pixels, ROWS by RATIO, share six taps, and keep the sums of all classes in registers.

    SIDE: of the masks; RATIO, 2^DOUBLINGS: of the crop's side to it; ROWS: of at most half a tap's height, so
    that all lie between the same two taps.
    """
    SIZE: tl.constexpr = SIDE * RATIO
    COUNT: tl.constexpr = ROWS * RATIO
    crop = tl.program_id(2).to(tl.int64)
    y = ROWS * (tl.program_id(1) * TILE_Y + tl.arange(0, TILE_Y))[:, None]
    cell = (tl.program_id(0) * TILE_X + tl.arange(0, TILE_X))[None, :]
    upper = (y + RATIO // 2) // RATIO - 1
    fraction = ((y + RATIO // 2) % RATIO).to(tl.float32) * (1 / RATIO) + 0.5 / RATIO
    # Taps outside are those of the border.
    row0 = tl.minimum(tl.maximum(upper, 0), SIDE - 1) * SIDE
    row1 = tl.minimum(upper + 1, SIDE - 1) * SIDE
    last = tl.minimum(cell, SIDE - 1)
    columns = (tl.maximum(last - 1, 0), last, tl.minimum(cell + 1, SIDE - 1))
    masks += crop * (QUERIES * SIDE * SIDE)
    weights += crop * (QUERIES * CLASSES)

    sums = tl.tuple(())
    for _ in tl.static_range(COUNT * CLASSES):
        sums += (tl.zeros((TILE_Y, TILE_X), tl.float32),)
    places = tl.tuple(())
    for i in tl.static_range(3):
        places += (masks + row0 + columns[i], masks + row1 + columns[i])
    for query in tl.range(0, QUERIES, loop_unroll_factor=UNROLL):
        taps = tl.tuple(())
        for i in tl.static_range(6):
            taps += (tl.load(places[i] + query * (SIDE * SIDE)),)
        pixels = pixels_of_taps(taps, fraction, RATIO, ROWS)
        updated = tl.tuple(())
        for pair in tl.static_range(COUNT // 2):
            both = sigmoids(pixels[2 * pair], pixels[2 * pair + 1])
            for i in tl.static_range(2 * CLASSES):
                weight = tl.load(weights + query * CLASSES + i % CLASSES)
                updated += (sums[2 * pair * CLASSES + i] + weight * both[i // CLASSES],)
        sums = updated

    scores += crop * (CLASSES * SIZE * SIZE)
    x = RATIO * tl.program_id(0) * TILE_X + tl.arange(0, TILE_X * RATIO)[None, :]
    for row in tl.static_range(ROWS):
        for k in tl.static_range(CLASSES):
            line = tl.tuple(())
            for i in tl.static_range(RATIO):
                line += (sums[(row * RATIO + i) * CLASSES + k],)
            # Neighbours end up side by side in one thread: each join adds a lower bit of their number.
            for doubling in tl.static_range(DOUBLINGS):
                pairs = tl.tuple(())
                for i in tl.static_range(RATIO >> (doubling + 1)):
                    pairs += (tl.join(line[i], line[i + (RATIO >> (doubling + 1))]),)
                line = pairs
            values = tl.reshape(line[0], (TILE_Y, TILE_X * RATIO))
            inside = (y + row < SIZE) & (x < SIZE)
            tl.store(scores + (k * SIZE + y + row) * SIZE + x, values, mask=inside)


@triton.jit
def halves(x: tl.tensor) -> tl.tuple:
    """fp32 as the sum of two fp16."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def score_many(
    masks: tl.tensor,
    weights: tl.tensor,
    scores: tl.tensor,
    QUERIES: tl.constexpr,
    CLASSES: tl.constexpr,
    SIDE: tl.constexpr,
    RATIO: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """A product of class probabilities (M classes x K queries) and mask probabilities (K queries x N pixels).

    In 16 bits neither would decide between classes as fp32 does, so each is a sum of two fp16; what both
    second halves would add is left out.
    """
    SIZE: tl.constexpr = SIDE * RATIO
    crop = tl.program_id(1).to(tl.int64)
    # Programs that differ in their classes alone are neighbours, so that they share logits in the L2 cache.
    BLOCKS: tl.constexpr = (CLASSES + BLOCK_M - 1) // BLOCK_M
    m = tl.program_id(0) % BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) // BLOCKS * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    pixel = tl.minimum(n, SIZE * SIZE - 1)
    y, x = pixel // SIZE + RATIO // 2, pixel % SIZE + RATIO // 2
    to_lower = ((y % RATIO).to(tl.float32) * (1 / RATIO) + 0.5 / RATIO)[None, :]
    to_right = ((x % RATIO).to(tl.float32) * (1 / RATIO) + 0.5 / RATIO)[None, :]
    top, bottom = tl.maximum(y // RATIO - 1, 0) * SIDE, tl.minimum(y // RATIO, SIDE - 1) * SIDE
    left, right = tl.maximum(x // RATIO - 1, 0), tl.minimum(x // RATIO, SIDE - 1)
    masks += crop * (QUERIES * SIDE * SIDE)
    weights += crop * (QUERIES * CLASSES)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, QUERIES, BLOCK_K):
        query = first + k
        real = (query < QUERIES)[:, None]
        planes = masks + tl.minimum(query, QUERIES - 1)[:, None] * (SIDE * SIDE)
        top_left = tl.load(planes + (top + left)[None, :]).to(tl.float32)
        top_right = tl.load(planes + (top + right)[None, :]).to(tl.float32)
        bottom_left = tl.load(planes + (bottom + left)[None, :]).to(tl.float32)
        bottom_right = tl.load(planes + (bottom + right)[None, :]).to(tl.float32)
        upper = top_left + to_right * (top_right - top_left)
        lower = bottom_left + to_right * (bottom_right - bottom_left)
        logits = upper + to_lower * (lower - upper)
        b, b_rest = halves(1.0 / (1.0 + tl.exp2(tl.minimum(logits * -LOG2E, LIMIT))))
        places = weights + query[:, None] * CLASSES + m[None, :]
        # Queries beyond the last weigh nothing.
        a, a_rest = halves(tl.trans(tl.load(places, mask=real & (m < CLASSES)[None, :], other=0.0)))
        total = tl.dot(a, b_rest, total)
        total = tl.dot(a_rest, b, total)
        total = tl.dot(a, b, total)
    places = scores + crop * (CLASSES * SIZE * SIZE) + m[:, None] * (SIZE * SIZE) + n[None, :]
    tl.store(places, total, mask=(m < CLASSES)[:, None] & (n < SIZE * SIZE)[None, :])
