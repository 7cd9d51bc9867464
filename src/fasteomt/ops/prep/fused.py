"""One Triton kernel: a thread makes a few pixels of one column, one below the other, in all three channels.

A thread walks over the frame's rows that its pixels need, two at a time. It adds up a row's pixels by the
horizontal weights, and adds that sum to each of its own pixels by the vertical ones. Weights come from the
triangle's formula; their sum is divided out at the end. Pixels are read in words of four bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops import geometry
from fasteomt.ops.prep import Problem
from fasteomt.ops.prep import parameters as block
from fasteomt.ops.target import Target, lacks_16_bit_gpu

BLOCK = 128  # columns of a program
ROWS = 4  # rows of a program
WARPS = 4

HEAD = tl.constexpr(geometry.HEAD)
MATRIX = tl.constexpr(block.MATRIX)
OFFSET = tl.constexpr(block.OFFSET)
GAIN = tl.constexpr(block.GAIN)
BIAS = tl.constexpr(block.BIAS)


def unsupported(target: Target, problem: Problem) -> str | None:
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


@triton.jit
def load_words(line: tl.tensor, offset: tl.tensor, end: tl.tensor, COUNT: tl.constexpr) -> tl.tuple:
    """Words of four: COUNT bytes from `offset` on, of a line of `end` bytes; beyond it they mean nothing.

    Memory is read in aligned words that have at least one byte of the line: there is no page without them.
    """
    shift = ((line.to(tl.int64) & 3).to(tl.int32) + offset) & 3
    first = offset - shift
    aligned = (line + first).to(tl.pointer_type(tl.uint32))
    loaded = tl.tuple(())
    for i in tl.static_range((COUNT + 6) // 4):
        loaded += (tl.load(aligned + i, mask=first < end - 4 * i),)
    words = tl.tuple(())
    for i in tl.static_range((COUNT + 3) // 4):
        if i + 1 < (COUNT + 6) // 4:
            both = (loaded[i + 1].to(tl.uint64) << 32) | loaded[i].to(tl.uint64)
            words += ((both >> (8 * shift).to(tl.uint64)).to(tl.uint32),)
        else:
            words += (loaded[i] >> (8 * shift).to(tl.uint32),)
    return words


@triton.jit
def byte(words: tl.tuple, INDEX: tl.constexpr) -> tl.tensor:
    return ((words[INDEX // 4] >> (INDEX % 4 * 8)) & 255).to(tl.float32)


@triton.jit
def sum_rgb(words: tl.tuple, taps: tl.tuple) -> tl.tuple:
    """Weighted sums of three pixels: red, green, blue."""
    sums = tl.tuple(())
    for channel in tl.static_range(3):
        total = taps[0] * byte(words, channel)
        for i in tl.static_range(1, 3):
            total += taps[i] * byte(words, 3 * i + channel)
        sums += (total,)
    return sums


@triton.jit
def shades(words: tl.tuple, matrix: tl.tuple, FIRST: tl.constexpr, STEP: tl.constexpr) -> tl.tuple:
    """What chroma adds to red, red, green, green, blue, blue of two pairs of pixels.

    matrix: nine values, then three offsets. FIRST: the index of the first byte U, STEP: bytes to the next V.
    """
    added = tl.tuple(())
    for channel in tl.static_range(3):
        for pair in tl.static_range(2):
            u = byte(words, FIRST + 2 * pair * STEP)
            v = byte(words, FIRST + (2 * pair + 1) * STEP)
            added += (matrix[3 * channel + 1] * u + (matrix[3 * channel + 2] * v + matrix[9 + channel]),)
    return added


@triton.jit
def sum_yuv(
    words: tl.tuple, added: tl.tuple, matrix: tl.tuple, taps: tl.tuple, STEP: tl.constexpr
) -> tl.tuple:
    """Weighted sums of four pixels: red, green, blue. STEP: bytes from Y to Y."""
    sums = tl.tuple(())
    for channel in tl.static_range(3):
        total = tl.zeros_like(taps[0])
        for i in tl.static_range(4):
            value = matrix[3 * channel] * byte(words, STEP * i) + added[2 * channel + i // 2]
            total += taps[i] * tl.minimum(tl.maximum(value, 0.0), 1.0)
        sums += (total,)
    return sums


@triton.jit
def prepare(
    frame: tl.tensor,
    chroma: tl.tensor,
    table: tl.tensor,
    parameters: tl.tensor,
    out: tl.tensor,
    SIZE: tl.constexpr,
    PATCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    SIDE: tl.constexpr = SIZE // PATCH
    crop = tl.program_id(2)
    if crop >= tl.load(table + 5):
        return
    top = tl.program_id(1) * ROWS
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    height = tl.load(table)
    width = tl.load(table + 1)
    start = tl.load(table + HEAD + crop)
    vertical = tl.load(table + 4) == 0
    stride = tl.load(parameters).to(tl.int64)
    chroma_stride = tl.load(parameters + 1).to(tl.int64)
    matrix = tl.tuple(())
    if LAYOUT != "rgb":
        for i in tl.static_range(GAIN - MATRIX):
            matrix += (tl.load(parameters + MATRIX + i),)

    # A pixel's centre in the frame; its filter reaches `support` pixels to both sides.
    scale_y = tl.div_rn(height.to(tl.float32), tl.load(table + 2).to(tl.float32))
    scale_x = tl.div_rn(width.to(tl.float32), tl.load(table + 3).to(tl.float32))
    support_y = tl.maximum(scale_y, 1.0)
    support_x = tl.maximum(scale_x, 1.0)
    slope_y = tl.div_rn(1.0, support_y)
    slope_x = tl.div_rn(1.0, support_x)
    # Beyond the crop's end its last line and column again: there is nothing else to read.
    centers = tl.tuple(())
    for r in tl.static_range(ROWS):
        y = tl.minimum(top + r, SIZE - 1) + tl.where(vertical, start, 0)
        centers += (scale_y * (y + 0.5),)
    x = tl.minimum(columns, SIZE - 1) + tl.where(vertical, 0, start)
    center = scale_x * (x + 0.5)
    first_row = tl.maximum((centers[0] - support_y + 0.5).to(tl.int32), 0)
    end_row = tl.minimum((centers[ROWS - 1] + support_y + 0.5).to(tl.int32), height)
    left = tl.maximum((center - support_x + 0.5).to(tl.int32), 0)
    pixels = (2 * support_x).to(tl.int32) + 1  # of the filter, at most
    if LAYOUT != "rgb":
        # Even, so that pixels that share a chroma sample are read together.
        first_row &= ~1
        left &= ~1
        pixels += 1
    # Pixels of a line that are read together: nine bytes are never more than three words.
    TAPS: tl.constexpr = 3 if LAYOUT == "rgb" else 4

    sums = tl.tuple(())
    for _ in tl.static_range(ROWS * 4):
        sums += (tl.zeros([BLOCK], tl.float32),)
    column = left
    rest = pixels
    # Triton 3.6's interpreter makes no range of numbers that were loaded.
    while rest > 0:
        taps = tl.tuple(())
        weight = tl.zeros([BLOCK], tl.float32)
        for i in tl.static_range(TAPS):
            tap = tl.maximum(1.0 - tl.abs(column + i + 0.5 - center) * slope_x, 0.0)
            tap = tl.where(column + i < width, tap, 0.0)
            taps += (tap,)
            weight += tap
        row = first_row
        while row < end_row:
            upper = frame + row * stride
            lower = frame + tl.minimum(row + 1, height - 1) * stride
            if LAYOUT == "rgb":
                upper_words = load_words(upper, 3 * column, 3 * width, 9)
                lower_words = load_words(lower, 3 * column, 3 * width, 9)
                upper_sums = sum_rgb(upper_words, taps)
                lower_sums = sum_rgb(lower_words, taps)
            elif LAYOUT == "nv12":
                upper_words = load_words(upper, column, width, 4)
                lower_words = load_words(lower, column, width, 4)
                pairs = load_words(chroma + (row >> 1) * chroma_stride, column, (width + 1) // 2 * 2, 4)
                added = shades(pairs, matrix, 0, 1)
                upper_sums = sum_yuv(upper_words, added, matrix, taps, 1)
                lower_sums = sum_yuv(lower_words, added, matrix, taps, 1)
            else:
                upper_words = load_words(upper, 2 * column, (width + 1) // 2 * 4, 8)
                lower_words = load_words(lower, 2 * column, (width + 1) // 2 * 4, 8)
                upper_sums = sum_yuv(upper_words, shades(upper_words, matrix, 1, 2), matrix, taps, 2)
                lower_sums = sum_yuv(lower_words, shades(lower_words, matrix, 1, 2), matrix, taps, 2)
            upper_sums += (weight,)
            lower_sums += (weight,)
            updated = tl.tuple(())
            for r in tl.static_range(ROWS):
                share = tl.maximum(1.0 - tl.abs(row + 0.5 - centers[r]) * slope_y, 0.0)
                next_share = tl.maximum(1.0 - tl.abs(row + 1.5 - centers[r]) * slope_y, 0.0)
                next_share = tl.where(row + 1 < height, next_share, 0.0)
                for i in tl.static_range(4):
                    total = sums[4 * r + i] + share * upper_sums[i]
                    updated += (total + next_share * lower_sums[i],)
            sums = updated
            row += 2
        column += TAPS
        rest -= TAPS

    out += crop.to(tl.int64) * (3 * SIZE * SIZE)  # within a crop 32 bits are enough
    for r in tl.static_range(ROWS):
        line_of_crop = top + r
        patch = line_of_crop // PATCH * SIDE + columns // PATCH
        places = patch * (3 * PATCH * PATCH) + line_of_crop % PATCH * PATCH + columns % PATCH
        for channel in tl.static_range(3):
            gain = tl.load(parameters + GAIN + channel)
            bias = tl.load(parameters + BIAS + channel)
            value = sums[4 * r + channel] / sums[4 * r + 3] * gain + bias
            real = (columns < SIZE) & (line_of_crop < SIZE)
            tl.store(out + places + channel * PATCH * PATCH, value.to(out.dtype.element_ty), mask=real)


def run(
    frame: Tensor,
    chroma: Tensor | None,
    table: Tensor,
    parameters: Tensor,
    out: Tensor,
    problem: Problem,
) -> None:
    grid = (triton.cdiv(problem.size, BLOCK), triton.cdiv(problem.size, ROWS), problem.crops)
    prepare[grid](
        frame,
        chroma,
        table,
        parameters,
        out,
        SIZE=problem.size,
        PATCH=problem.patch,
        LAYOUT=problem.layout,
        BLOCK=BLOCK,
        ROWS=ROWS,
        num_warps=WARPS,
    )
