"""One Triton kernel: a program keeps one row in registers from the residual add to the normalised row.

A warp takes 1024 channels, so up to there sums need no shared memory and no barrier; the 2058 rows of two
crops are all resident at once on 132 processors, 16 warps each.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.add_norm import Problem
from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.target import Target, lacks_16_bit_gpu


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.channels > 8192 or problem.channels % 8:
        return f"{problem.channels} channels: it takes up to 8192, a multiple of 8"
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


def warps(channels: int) -> int:
    """Of a program."""
    return max(1, triton.next_power_of_2(channels) // 1024)


@triton.jit
def add_norm(
    x: tl.tensor,
    delta: tl.tensor | None,
    scale: tl.tensor | None,
    source: tl.tensor | None,
    initial: tl.tensor | None,
    weight: tl.tensor,
    bias: tl.tensor,
    x_out: tl.tensor | None,
    out: tl.tensor,
    eps: float,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    # Runs of four for all: 16-bit tensors alone would get runs of eight, and x_out change hands to be stored.
    columns = tl.max_contiguous(tl.arange(0, BLOCK), 4)
    real = columns < CHANNELS
    let_next_start()
    # Before inputs are there, unless the delta's scale takes the registers.
    if scale is None:
        gain = tl.load(weight + columns, mask=real, other=0.0)
        offset = tl.load(bias + columns, mask=real, other=0.0)
    # One value for the whole row: a load that isn't wanted costs nothing.
    picked = row
    kept = real
    if source is not None:
        picked = tl.load(source + row).to(tl.int64)
        kept = real & (picked >= 0)
    wait_for_inputs()
    value = tl.load(x + picked * CHANNELS + columns, mask=kept, other=0.0).to(tl.float32)
    if delta is not None:
        added = tl.load(delta + picked * CHANNELS + columns, mask=kept, other=0.0).to(tl.float32)
        if scale is not None:
            added *= tl.load(scale + columns, mask=real, other=0.0)
        value += added
    if initial is not None:
        value += tl.load(initial + (-1 - picked) * CHANNELS + columns, mask=real & (picked < 0), other=0.0)
    if x_out is not None:
        tl.store(x_out + row * CHANNELS + columns, value, mask=real)
    if scale is not None:
        gain = tl.load(weight + columns, mask=real, other=0.0)
        offset = tl.load(bias + columns, mask=real, other=0.0)
    mean = tl.sum(value, axis=0) / CHANNELS
    centred = tl.where(real, value - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / CHANNELS
    normal = centred * tl.rsqrt(variance + eps) * gain + offset
    tl.store(out + row * CHANNELS + columns, normal.to(out.dtype.element_ty), mask=real)


def run(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    out: Tensor,
    *,
    scale: Tensor | None = None,
    x_out: Tensor | None = None,
    source: Tensor | None = None,
    initial: Tensor | None = None,
) -> None:
    rows, channels = out.shape
    add_norm[(rows,)](
        x,
        delta,
        scale,
        source,
        initial,
        weight,
        bias,
        x_out,
        out,
        eps,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=warps(channels),
        **early(),
    )
