"""Rotary positions as one pass over queries and keys, bound by memory.

A program turns a few rows, whole pairs in a thread's registers; rows of extra tokens are not even read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.rope import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target, lacks_16_bit_gpu

# Values of qkv that a program turns, and its warps: 16 values a thread are two loads of 16 bytes in flight.
VALUES, WARPS = 2048, 4


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.head_dim & (problem.head_dim - 1) or problem.head_dim < 16:
        return f"head_dim {problem.head_dim} is no power of two from 16 on"
    return lacks_16_bit_gpu(target, problem.dtype, use="reference")


def run(qkv: Tensor, rotation: Rotation, rotated: int, rows: Rows) -> None:
    """Turn qkv (rows.total, width), 16 bit, in place."""
    half = rotation.sin.shape[1]
    heads = max(1, VALUES // (2 * half))
    grid = (rows.crops * rows.patches, triton.cdiv(rotated, heads * 2 * half))
    turn[grid](
        qkv,
        rotation.sin,
        rotation.cos,
        rotated // (2 * half),
        WIDTH=qkv.shape[1],
        PATCHES=rows.patches,
        EXTRAS=rows.extras,
        HALF=half,
        HEADS=heads,
        num_warps=WARPS,
        **early(),
    )


@triton.jit(do_not_specialize=["heads"])
def turn(
    qkv: tl.tensor,
    sin: tl.tensor,
    cos: tl.tensor,
    heads: int,
    WIDTH: tl.constexpr,
    PATCHES: tl.constexpr,
    EXTRAS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    """One patch, HEADS heads of it."""
    let_next_start()
    crop = tl.program_id(0) // PATCHES
    patch = tl.program_id(0) % PATCHES
    row = crop * (PATCHES + EXTRAS) + (crop & 1) * EXTRAS + patch
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    feature = tl.arange(0, 2 * HALF)
    at = qkv + row.to(tl.int64) * WIDTH + head[:, None] * (2 * HALF) + feature[None, :]
    there = (head < heads)[:, None]
    wait_for_inputs()
    pairs = tl.reshape(tl.load(at, mask=there), (HEADS, HALF, 2)).to(tl.float32)
    first, second = tl.split(pairs)
    table = patch * HALF + tl.arange(0, HALF)
    s, c = tl.load(sin + table)[None, :], tl.load(cos + table)[None, :]
    turned = tl.reshape(tl.join(first * c - second * s, second * c + first * s), (HEADS, 2 * HALF))
    tl.store(at, turned.to(qkv.dtype.element_ty), mask=there)
