"""flash-attn-4: FlashAttention-3 and -4 in the CuTe DSL."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.compat import flash_attention
from fasteomt.ops.attention import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

WRITES_OUT = True


def unsupported(target: Target, problem: Problem) -> str | None:
    if target.sm // 10 not in (8, 9, 10, 12):
        return "needs an NVIDIA GPU of sm_80, sm_90, sm_100 or sm_120: use 'library'"
    if problem.rope:
        return "turns nothing: run the op 'rope' before it"
    if problem.out_dtype != problem.dtype:
        return f"gives what it takes, not {problem.out_dtype} of {problem.dtype}"
    if problem.half_accumulate:
        return "half_accumulate: use 'fused'"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"{problem.dtype}: float16 or bfloat16 only"
    if problem.head_dim not in (64, 128):
        return f"head_dim {problem.head_dim}: 64 or 128 only"
    if not flash_attention.installed():
        return "needs package 'flash-attn-4': pip install 'fasteomt[kernels]'"
    return None


def run(qkv: Tensor, out: Tensor, heads: int, rows: Rows, rotation: Rotation | None = None) -> Tensor:
    """Write into `out` (rows.total, heads D), contiguous, and return it."""
    split = qkv.unflatten(0, (rows.crops, -1)).unflatten(2, (3, heads, -1))
    q, k, v = split.unbind(2)
    flash_attention.forward(q, k, v, out.view(q.shape))
    return out
