"""One Triton kernel: a program takes a piece of one row and both its halves."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.silu_mul import Problem
from fasteomt.ops.target import Target, lacks_16_bit_gpu

BLOCK = 1024  # columns of a program of 4 warps: 16 bytes a thread and operand


def unsupported(target: Target, problem: Problem) -> str | None:
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


@triton.jit
def silu_mul(x: tl.tensor, out: tl.tensor, HIDDEN: tl.constexpr, BLOCK: tl.constexpr) -> None:
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = columns < HIDDEN
    halves = x + row * 2 * HIDDEN
    gate = tl.load(halves + columns, mask=real, other=0.0).to(tl.float32)
    value = tl.load(halves + HIDDEN + columns, mask=real, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * value
    tl.store(out + row * HIDDEN + columns, gated.to(out.dtype.element_ty), mask=real)


def run(x: Tensor, out: Tensor) -> None:
    rows, hidden = out.shape
    grid = (rows, triton.cdiv(hidden, BLOCK))
    silu_mul[grid](x, out, HIDDEN=hidden, BLOCK=BLOCK, num_warps=4, **early())
