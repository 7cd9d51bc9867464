"""The end of the last ScaleBlock and the mask logits: depthwise 3 x 3 convolution, LayerNorm over channels,
and each query's scalar product with each pixel, in raster order. The normalised features stay inside.

LayerNorm is undone into the product. With v a pixel's convolved channels, m and r their mean and
1 / deviation, w and b the norm's weight and bias, q a query, and f = q w its folded values,

    sum q (r (v - m) w + b) = r (sum v f - m sum f) + sum q b,

so products can be summed up before m and r are known. v and f are rounded to 16 bits, where features would be
otherwise: for m near zero the error of rounding is sqrt(2) times as large, and it grows with m r. Taps are
scaled before, so that v is in range; LayerNorm doesn't mind if `eps` is scaled with them.

`fold(queries, norm_weight, norm_bias, folded, sums)`, all contiguous: queries (B * Q, C), crop by crop,
16-bit; norm_weight, norm_bias (C,) fp32; folded (B, Q + 1, C) of the same dtype, the last of a crop's rows
ones; sums (2, B * Q) fp32: of each query's folded values, and of q b.

`run(x, taps, eps, folded, sums, out, grid)`, all contiguous: x (grid.pixels, C) in the order of `ops.grid`,
of folded's dtype; taps (9, C) fp32, row 3 * dy + dx, and eps as `in_range` gives them; out
(B, Q, resolution, resolution).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.ops.grid import Grid

IMPLEMENTATIONS = ("reference", "fused", "cuda")


@dataclass(frozen=True)
class Problem:
    """`queries` of one crop; `dtype` of features and queries; `out_dtype` the same or fp32."""

    grid: Grid
    queries: int
    channels: int
    dtype: torch.dtype
    out_dtype: torch.dtype


def in_range(taps: Tensor, eps: float) -> tuple[Tensor, float]:
    """(9, C) taps scaled by a power of two, and eps by its square, with no channel's sum of |taps| above one.

    A convolved value is then at most the largest of its inputs, and fits their dtype as they do.
    """
    largest = 0.0 if taps.device.type == "meta" else float(taps.abs().sum(0).amax())
    # 2^exponent is above `largest`. What is no finite number stays so, and so do its masks.
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    scale = 2.0**-exponent
    return taps * scale, eps * scale**2
