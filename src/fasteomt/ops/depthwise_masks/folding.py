"""A small Triton kernel that folds the norm into the queries: what implementations with kernels share."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs


@triton.jit
def fold_queries(
    queries: tl.tensor,
    norm_weight: tl.tensor,
    norm_bias: tl.tensor,
    folded: tl.tensor,
    sums: tl.tensor,
    QUERIES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    let_next_start()
    row, crop = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    real = columns < CHANNELS
    gain = tl.load(norm_weight + columns, mask=real, other=0.0)
    offset = tl.load(norm_bias + columns, mask=real, other=0.0)
    wait_for_inputs()
    at = folded + (crop * (QUERIES + 1) + row) * CHANNELS + columns
    if row == QUERIES:
        tl.store(at, tl.full((BLOCK,), 1.0, folded.dtype.element_ty), mask=real)
    else:
        number = crop * QUERIES + row
        query = tl.load(queries + number * CHANNELS + columns, mask=real, other=0.0).to(tl.float32)
        product = (query * gain).to(folded.dtype.element_ty)
        tl.store(at, product, mask=real)
        tl.store(sums + number, tl.sum(product.to(tl.float32), axis=0))
        tl.store(sums + tl.num_programs(1) * QUERIES + number, tl.sum(query * offset, axis=0))


def fold(queries: Tensor, norm_weight: Tensor, norm_bias: Tensor, folded: Tensor, sums: Tensor) -> None:
    crops, rows, channels = folded.shape
    fold_queries[rows, crops](
        queries,
        norm_weight,
        norm_bias,
        folded,
        sums,
        QUERIES=rows - 1,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        **early(),
    )
