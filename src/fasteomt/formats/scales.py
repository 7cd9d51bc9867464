"""Scales of amax values (largest magnitudes), and what to multiply by so that scaled values are elements.

A value decodes as element × scale. fp32 scales are normal numbers, so that no reciprocal overflows; an E4M3
block scale can be 0, and all of its block is then. A NaN or an infinity among the values that a scale comes
from makes the scale NaN, and with it all that shares it: better than one number silently replaced.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.formats.minifloat import E2M1, E4M3, MiniFloat, encode
from fasteomt.formats.recipe import Granularity

NAN_CODE = 0x7F  # of E4M3
SMALLEST_SCALE = 2.0**-126  # the smallest normal fp32 number, whose reciprocal is finite
SMALLEST_TENSOR_SCALE = 2.0**-117  # times the smallest block scale, 2^-9, it is that


def amax_of(rows: Tensor, granularity: Granularity, block: int) -> Tensor:
    """Largest magnitudes of (rows, K) values: (1, 1), (rows, 1), (1, K) or (rows, K / block). NaN where a
    value is NaN."""
    magnitudes = rows.abs()
    match granularity:
        case Granularity.TENSOR:
            return magnitudes.amax().view(1, 1)
        case Granularity.ROW:
            return magnitudes.amax(1, keepdim=True)
        case Granularity.CHANNEL:
            return magnitudes.amax(0, keepdim=True)
        case Granularity.BLOCK:
            return magnitudes.unflatten(1, (-1, block)).amax(2)


def fp32_scales(amax: Tensor, number: MiniFloat) -> Tensor:
    """amax / largest element, at least 2^-126; 1 where amax is 0."""
    return _fp32(amax, number.max, SMALLEST_SCALE)


def nvfp4_tensor_scale(amax: Tensor) -> Tensor:
    """amax / (448 · 6), at least 2^-117; 1 where amax is 0: the largest block's scale becomes 448."""
    return _fp32(amax, E4M3.max * E2M1.max, SMALLEST_TENSOR_SCALE)


def nvfp4_block_scales(amax: Tensor, tensor_scale: Tensor) -> Tensor:
    """uint8 E4M3 codes of (amax / 6) / tensor scale, to the nearest, in this order in fp32; at most 448. 0
    says that all of a block's values are too small; NaN that its amax is NaN or infinite."""
    codes = encode(_divided(amax, E2M1.max) / tensor_scale, E4M3).codes
    return torch.where(amax.isfinite(), codes, NAN_CODE)


def reciprocal(scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor:
    """1 / scale, or (1 / tensor scale) / scale, in fp32; 0 for a scale of 0.

    Every division is to the nearest: a kernel needs true ones to get the same bits.
    """
    one = 1.0 if tensor_scale is None else 1 / tensor_scale
    return torch.where(scales == 0, 0.0, one / scales)


def _fp32(amax: Tensor, largest: float, smallest: float) -> Tensor:
    scales = torch.where(amax == 0, 1.0, _divided(amax, largest).clamp(min=smallest))
    return torch.where(amax.isfinite(), scales, torch.nan)


def _divided(amax: Tensor, divisor: float) -> Tensor:
    # On a GPU torch multiplies by the reciprocal of a Python number, which can be another result.
    return amax / torch.full_like(amax, divisor)
