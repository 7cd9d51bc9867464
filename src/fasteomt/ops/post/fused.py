"""Three Triton kernels: class probabilities, the crops' scores, the frame's ids.

None knows the frame's size when it is launched: the tables say it.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor

from fasteomt.ops.post import Problem
from fasteomt.ops.post.class_scores import score_few, score_many, weigh
from fasteomt.ops.post.frame_ids import choose
from fasteomt.ops.target import Target

FEW_CLASSES = 8  # whose sums fit registers; from there on tensor cores add them
SUMS_PER_THREAD = 64
TILE_Y, TILE_X, UNROLL = 4, 32, 2  # threads of a program, and queries of a step
FRAME_Y, FRAME_X, CLASSES_AT_ONCE = 4, 256, 2  # pixels of the frame that four warps take
PROGRAMS_PER_PROCESSOR = 8


def unsupported(target: Target, problem: Problem) -> str | None:
    if target.arch == "cpu":
        return "needs a GPU: use 'reference'"
    if problem.size not in {ratio * problem.resolution for ratio in (2, 4, 8)}:
        return f"crops of {problem.size} are not 2, 4 or 8 times {problem.resolution}: use 'reference'"
    if max(problem.queries * problem.resolution**2, problem.classes * problem.size**2) >= 2**31:
        return "a crop's masks or scores have 2^31 elements: use 'reference'"
    return None


def rows_of_thread(ratio: int, classes: int) -> int:
    """Rows of pixels that a thread takes: between two taps, and as many as its sums leave room for."""
    rows = ratio // 2
    while rows > 1 and rows * ratio * classes > SUMS_PER_THREAD:
        rows //= 2
    return rows


@dataclass(frozen=True)
class Product:
    """Tile of classes x pixels, and queries of a step."""

    block_m: int
    block_n: int
    block_k: int
    warps: int


def product(classes: int) -> Product:
    """Up to 256 classes a tile, so that mask probabilities are computed once or twice."""
    block_m = min(max(triton.next_power_of_2(classes), 64), 256)
    return Product(block_m, 64, 16, 8 if block_m > 64 else 4)


def run(
    masks: Tensor,
    classes: Tensor,
    tables: Tensor,
    ids: Tensor,
    weights: Tensor,
    scores: Tensor,
    out: Tensor,
    sums: Tensor | None = None,
) -> None:
    crops, queries, count = weights.shape
    frames, entries = tables.shape
    side, size = masks.shape[-1], scores.shape[-1]
    ratio = size // side
    cleared = 0 if sums is None else sums.numel()
    weigh[(crops * queries,)](
        classes,
        weights,
        sums,
        CLASSES=count,
        BLOCK=triton.next_power_of_2(count + 1),
        SUMS=cleared,
        BLOCK_SUMS=triton.next_power_of_2(cleared),
        num_warps=1,
    )
    shapes = {"QUERIES": queries, "CLASSES": count, "SIDE": side, "RATIO": ratio}
    if count <= FEW_CLASSES:
        rows = rows_of_thread(ratio, count)
        tiles = (triton.cdiv(side, TILE_X), triton.cdiv(size // rows, TILE_Y), crops)
        score_few[tiles](
            masks,
            weights,
            scores,
            **shapes,
            ROWS=rows,
            TILE_Y=TILE_Y,
            TILE_X=TILE_X,
            DOUBLINGS=ratio.bit_length() - 1,
            UNROLL=UNROLL,
            num_warps=4,
        )
    else:
        tile = product(count)
        tiles = triton.cdiv(count, tile.block_m) * triton.cdiv(size * size, tile.block_n)
        score_many[(tiles, crops)](
            masks,
            weights,
            scores,
            **shapes,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            num_warps=tile.warps,
        )
    programs = PROGRAMS_PER_PROCESSOR * Target.of(out.device).processors
    choose[(programs, frames)](
        scores,
        tables,
        ids,
        out,
        sums,
        out.shape[1],
        CROPS=crops // frames,
        ENTRIES=entries,
        CLASSES=count,
        GROUP=min(count, CLASSES_AT_ONCE),
        SIZE=size,
        SUMS=sums is not None,
        TILE_Y=FRAME_Y,
        TILE_X=FRAME_X,
        num_warps=4,
    )
