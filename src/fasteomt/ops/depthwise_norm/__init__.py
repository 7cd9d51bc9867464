"""The second half of a ScaleBlock: depthwise 3 x 3 convolution, then LayerNorm over channels.

Pixels outside a crop are zero. Rows are in the order of `ops.grid`, in and out.

`run(x, weight, norm_weight, norm_bias, eps, out, grid)`, all contiguous: x, out (grid.pixels, C) 16-bit, not
the same memory; weight (9, C) fp32, row 3 * dy + dx; norm_weight, norm_bias (C,) fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fasteomt.ops.grid import Grid

IMPLEMENTATIONS = ("reference", "fused")


@dataclass(frozen=True)
class Problem:
    """`dtype` of the features, in and out."""

    grid: Grid
    channels: int
    dtype: torch.dtype
