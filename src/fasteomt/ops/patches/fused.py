"""One Triton kernel: a program takes one channel of a few patches, so it writes whole runs of columns."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.patches import Problem
from fasteomt.ops.target import Target, lacks_16_bit_gpu

BLOCK = 1024  # pixels of a program


def unsupported(target: Target, problem: Problem) -> str | None:
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


@triton.jit
def cut(
    crops: tl.tensor,
    out: tl.tensor,
    total: int,
    SIZE: tl.constexpr,
    PATCH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    channel = tl.program_id(1)
    let_next_start()
    side: tl.constexpr = SIZE // PATCH
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    real = (rows < total) & (columns < PATCH * PATCH)
    top = ((rows // (side * side)) * 3 + channel) * SIZE + rows // side % side * PATCH
    pixels = (top + columns // PATCH).to(tl.int64) * SIZE + rows % side * PATCH + columns % PATCH
    wait_for_inputs()
    value = tl.load(crops + pixels, mask=real)
    places = (rows * 3 + channel).to(tl.int64) * (PATCH * PATCH) + columns
    tl.store(out + places, value.to(out.dtype.element_ty), mask=real)


def run(crops: Tensor, out: Tensor, patch: int) -> None:
    columns = triton.next_power_of_2(patch * patch)
    rows = max(1, BLOCK // columns)
    total = out.shape[0]
    cut[(triton.cdiv(total, rows), 3)](
        crops, out, total, SIZE=crops.shape[3], PATCH=patch, ROWS=rows, COLUMNS=columns, num_warps=4,
        **early(),
    )  # fmt: skip
