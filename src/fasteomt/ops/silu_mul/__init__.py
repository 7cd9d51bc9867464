"""The gate of SwiGLU: silu(x[:, :H]) * x[:, H:].

`run(x, out)`, both contiguous: x (M, 2 H), out (M, H), 16-bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

IMPLEMENTATIONS = ("reference", "fused")


@dataclass(frozen=True)
class Problem:
    """`hidden`: H, columns of the result; `dtype` of both."""

    rows: int
    hidden: int
    dtype: torch.dtype
