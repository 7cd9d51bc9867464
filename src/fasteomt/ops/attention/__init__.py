"""Multi-head self-attention within each crop: softmax(q k^T / sqrt(D)) v, D = head_dim.

`run(qkv, out, heads, rows, rotation=None)`: qkv (rows.total, 3 heads D), contiguous, with columns [queries |
keys | values], each heads x D. Returns the tensor (rows.total, heads D) that holds the result: `out`, or,
where a module's `WRITES_OUT` is False, one of its own; `out` may be None there. With `rotation` (only where
`Problem.rope` was asked for) the queries and keys of patches are turned first, in registers: qkv stays as it
is. A module that has `room_for(problem, device)` takes the memory that this gives as `room`, so that launches
needn't make it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fasteomt.ops.rows import Rows

IMPLEMENTATIONS: tuple[str, ...] = ("reference", "library", "fused", "cute", "cuda")


@dataclass(frozen=True)
class Problem:
    """`dtype` of qkv; `out_dtype` of the result, `dtype` if None. `rope`: turn queries and keys too.
    `half_accumulate`: sum probabilities times values in FP16 within a block of keys (twice the rate on
    sm_120; FP16 only)."""

    rows: Rows
    heads: int
    head_dim: int
    dtype: torch.dtype
    rope: bool = False
    half_accumulate: bool = False
    out_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out_dtype", self.out_dtype or self.dtype)
