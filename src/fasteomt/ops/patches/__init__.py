"""Crops cut into patches: the rows that the patch embedding's weights, a matrix, are applied to.

`run(crops, out, patch)`, all contiguous: crops (B, 3, S, S) fp32 or 16-bit; out (B * P, 3 * patch * patch)
16-bit, crop by crop, patches in raster order, columns in the order of Conv2d's weight.flatten(1)
(channel, y, x).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

IMPLEMENTATIONS = ("reference", "fused")


@dataclass(frozen=True)
class Problem:
    """`crops` of `size` x `size` pixels, patches of `patch` x `patch`; `dtype` of the result."""

    crops: int
    size: int
    patch: int
    dtype: torch.dtype
