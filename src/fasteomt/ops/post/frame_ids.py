"""Kernel of a frame's class ids, from its crops' scores."""

from __future__ import annotations

import triton
import triton.language as tl

from fasteomt.ops.geometry import HEAD
from fasteomt.ops.post import UNIT

STARTS = tl.constexpr(HEAD)
SHARES = tl.constexpr(UNIT)
FAR = tl.constexpr(2**30)  # beyond any frame
TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal fp32


@triton.jit
def source(place: tl.tensor, ratio: tl.tensor, limit: tl.tensor) -> tl.tuple:
    """(first tap, second tap, way from one to the other) of pixels, as torch's bilinear resizing has them."""
    at = tl.maximum((place.to(tl.float32) + 0.5) * ratio - 0.5, 0.0)
    first = tl.minimum(at.to(tl.int32), limit - 1)
    return first, tl.minimum(first + 1, limit - 1), at - first.to(tl.float32)


@triton.jit
def reciprocal(x: tl.tensor) -> tl.tensor:
    """Of a positive normal number, to about 2^-22: without a division's care for the others."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def within(
    tap: tl.tensor,
    weight: tl.tensor,
    start: tl.tensor,
    before: tl.tensor,
    after: tl.tensor,
    SIZE: tl.constexpr,
) -> tl.tuple:
    """(place in a crop, weight there) of taps; before: where the crop before it ends, after: the next begins.

    Taps that it shares count half; those outside weigh nothing, at a place inside.
    """
    weight = tl.where((tap < before) | (tap >= after), 0.5 * weight, weight)
    place = tl.minimum(tl.maximum(tap - start, 0), SIZE - 1)
    return place, tl.where(place == tap - start, weight, 0.0)


@triton.jit
def choose_along(
    scores: tl.tensor,
    table: tl.tensor,
    ids: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    VERTICAL: tl.constexpr,
    CLASSES: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    SUMS: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
) -> None:
    """One frame, whose long side is vertical or not. Programs take its tiles in turn."""
    PLANE: tl.constexpr = SIZE * SIZE
    height, width = tl.load(table), tl.load(table + 1)
    h, w = tl.load(table + 2), tl.load(table + 3)
    crops = tl.load(table + 5)
    ratio_y = tl.div_rn(h.to(tl.float32), height.to(tl.float32))
    ratio_x = tl.div_rn(w.to(tl.float32), width.to(tl.float32))
    # In one dimension, so that no thread asks others for its pixels' rows and columns.
    TILE: tl.constexpr = TILE_Y * TILE_X
    rows, columns = tl.arange(0, TILE) // TILE_X, tl.arange(0, TILE) % TILE_X
    across = tl.cdiv(width, TILE_X)
    tiles = across * tl.cdiv(height, TILE_Y)
    tile = tl.program_id(0)
    while tile < tiles:
        top, left = tile // across * TILE_Y, tile % across * TILE_X
        y0, y1, down = source(tl.minimum(top + rows, height - 1), ratio_y, h)
        x0, x1, right = source(tl.minimum(left + columns, width - 1), ratio_x, w)
        # Which crops reach into the tile.
        if VERTICAL:
            lowest = source(top, ratio_y, h)[0]
            highest = source(tl.minimum(top + TILE_Y, height) - 1, ratio_y, h)[1]
        else:
            lowest = source(left, ratio_x, w)[0]
            highest = source(tl.minimum(left + TILE_X, width) - 1, ratio_x, w)[1]
        begin, end, crop = 0, 0, 0
        while crop < crops:
            start = tl.load(table + STARTS + crop)
            begin += (start + SIZE <= lowest).to(tl.int32)
            end += (start <= highest).to(tl.int32)
            crop += 1

        best = tl.full((TILE,), float("-inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        index = tl.zeros((TILE,), tl.int32)
        for first in range(0, CLASSES, GROUP):
            values = (tl.zeros((TILE,), tl.float32),) * GROUP
            crop = begin
            while crop < end:
                start = tl.load(table + STARTS + crop)
                before = tl.where(crop > 0, tl.load(table + STARTS + tl.maximum(crop - 1, 0)) + SIZE, 0)
                after = tl.load(table + STARTS + tl.minimum(crop + 1, crops - 1))
                after = tl.where(crop + 1 < crops, after, FAR)
                # Along the short side every crop covers all.
                row0, row1, column0, column1 = y0, y1, x0, x1
                of_row0, of_row1, of_column0, of_column1 = 1.0 - down, down, 1.0 - right, right
                if VERTICAL:
                    row0, of_row0 = within(row0, of_row0, start, before, after, SIZE)
                    row1, of_row1 = within(row1, of_row1, start, before, after, SIZE)
                else:
                    column0, of_column0 = within(column0, of_column0, start, before, after, SIZE)
                    column1, of_column1 = within(column1, of_column1, start, before, after, SIZE)
                planes = scores + tl.cast(crop, tl.int64) * (CLASSES * PLANE)
                place00 = row0 * SIZE + column0
                place01 = row0 * SIZE + column1
                place10 = row1 * SIZE + column0
                place11 = row1 * SIZE + column1
                updated = tl.tuple(())
                for i in tl.static_range(GROUP):
                    plane = planes + min(first + i, CLASSES - 1) * PLANE
                    upper = tl.load(plane + place00) * of_column0
                    upper += tl.load(plane + place01) * of_column1
                    lower = tl.load(plane + place10) * of_column0
                    lower += tl.load(plane + place11) * of_column1
                    updated += (values[i] + upper * of_row0 + lower * of_row1,)
                values = updated
                crop += 1
            for i in tl.static_range(GROUP):
                better = values[i] > best
                best = tl.where(better, values[i], best)
                index = tl.where(better, first + i, index)
                # A last class that has come again is no better than before, but must not be added again.
                total += tl.where(first + i < CLASSES, values[i], 0.0)

        inside = (top + rows < height) & (left + columns < width)
        corner = out + top.to(tl.int64) * width + left
        names = tl.load(ids + index)
        tl.store(corner + rows * width + columns, names.to(out.dtype.element_ty), mask=inside)
        if SUMS:
            # A tile's sum stays below 2^31.
            tl.static_assert(TILE * SHARES < 2**31)
            share = best * reciprocal(tl.maximum(total, TINY))
            fixed = (share * SHARES + 0.5).to(tl.int32)
            # One class that occurs in the tile after the other: few do.
            rest = tl.where(inside, index, CLASSES)
            k = tl.min(rest)
            while k < CLASSES:
                mine = rest == k
                places = sums + 2 * k
                tl.atomic_add(places, tl.sum(mine.to(tl.int32)).to(tl.int64), sem="relaxed")
                tl.atomic_add(places + 1, tl.sum(tl.where(mine, fixed, 0)).to(tl.int64), sem="relaxed")
                rest = tl.where(mine, CLASSES, rest)
                k = tl.min(rest)
        tile += tl.num_programs(0)


@triton.jit
def choose(
    scores: tl.tensor,
    tables: tl.tensor,
    ids: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    capacity: tl.tensor,
    CROPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    CLASSES: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    SUMS: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
) -> None:
    """The number of programs needs no frame.

    CROPS of a frame at most; ENTRIES of its table; GROUP: classes that share taps' addresses; capacity:
    pixels from one frame to the next in `out`.
    """
    frame = tl.program_id(1).to(tl.int64)
    table = tables + frame * ENTRIES
    scores += frame * CROPS * (CLASSES * SIZE * SIZE)
    out += frame * capacity
    if SUMS:
        sums += frame * (CLASSES * 2)
    # Each has code of its own, since one of a pixel's coordinates has nothing to do with where crops lie.
    if tl.load(table + 4) == 0:
        choose_along(scores, table, ids, out, sums, True, CLASSES, GROUP, SIZE, SUMS, TILE_Y, TILE_X)
    else:
        choose_along(scores, table, ids, out, sums, False, CLASSES, GROUP, SIZE, SUMS, TILE_Y, TILE_X)
