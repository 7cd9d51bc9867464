"""E8M0 scales: powers of two from 2^-127 to 2^127 as a biased exponent, 0xFF for NaN; no sign, no zero.

OCP Microscaling Formats (MX) v1.0, section 5.4.1.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from fasteomt.formats.minifloat import MiniFloat, power_of_two

BIAS = 127
NAN = 0xFF
_FP32_MANTISSA = 23


class Rule(StrEnum):
    """How a block's largest magnitude becomes a power of two.

    FLOOR: 2^(floor(log2(amax)) - emax), emax being the exponent of the largest element: OCP MX v1.0, section
        6.3. The largest values of a block saturate if amax / scale lies beyond the largest element.
    CEIL: the smallest power of two with amax / scale <= the largest element, so that nothing saturates:
        Mishra et al., "Recipes for Pre-training LLMs with MXFP8" (arXiv:2506.08027), and what PTX's
        `cvt.rp.satfinite.ue8m0x2` makes of amax / largest.
    """

    FLOOR = "floor"
    CEIL = "ceil"


def encode_amax(amax: Tensor, elements: MiniFloat, rule: Rule) -> Tensor:
    """uint8 E8M0 codes, of `amax`'s shape (fp32, >= 0): the scales of blocks with these largest magnitudes.

    Scales below 2^-127 become that. amax 0 gives scale 1; an infinite amax, or NaN, gives NaN.
    """
    bits = amax.contiguous().view(torch.int32).long()
    exponent = (bits >> _FP32_MANTISSA) - BIAS
    scale = exponent - elements.emax
    if rule == Rule.CEIL:
        # amax / largest is compared with a power of two by the significands alone: no division, no rounding.
        fraction = elements.largest & ((1 << elements.mantissa_bits) - 1)
        scale = scale + ((bits & 0x7FFFFF) > fraction << (_FP32_MANTISSA - elements.mantissa_bits)).long()
    codes = scale.clamp(min=-BIAS) + BIAS
    codes = torch.where(amax == 0, BIAS, codes)
    return torch.where(amax.isfinite(), codes, NAN).to(torch.uint8)


def decode(codes: Tensor) -> Tensor:
    """fp32 scales of uint8 codes, of their shape; exact."""
    wide = codes.long()
    return torch.where(wide == NAN, torch.nan, power_of_two(wide.clamp(max=NAN - 1) - BIAS))
