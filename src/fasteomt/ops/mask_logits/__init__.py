"""Mask logits: each query's scalar product with each pixel's features, brought into raster order.

`run(queries, features, out, grid)`, all contiguous: queries (B * Q, C), crop by crop, and features
(grid.pixels, C) in the order of `ops.grid`, both of one 16-bit dtype; out (B, Q, resolution, resolution).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fasteomt.ops.grid import Grid

IMPLEMENTATIONS = ("reference", "library", "fused")


@dataclass(frozen=True)
class Problem:
    """`queries` of one crop; `dtype` of the operands; `out_dtype` the same or fp32."""

    grid: Grid
    queries: int
    channels: int
    dtype: torch.dtype
    out_dtype: torch.dtype
