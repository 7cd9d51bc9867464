"""Attention by its definition, in fp32."""

from __future__ import annotations

from torch import Tensor

from fasteomt.ops.attention import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

WRITES_OUT = True


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.rope:
        return "turns nothing: run the op 'rope' before it"
    return "sums in fp32 only" if problem.half_accumulate else None


def run(qkv: Tensor, out: Tensor, heads: int, rows: Rows, rotation: Rotation | None = None) -> Tensor:
    """Write into `out` (rows.total, heads D) and return it; rounded once."""
    q, k, v = qkv.float().unflatten(0, (rows.crops, -1)).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return out.copy_((weights @ v).transpose(1, 2).reshape(out.shape))
