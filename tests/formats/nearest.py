"""Rounding by looking at all numbers of a format: slow, and right at a glance. Also values worth rounding."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from fasteomt.formats.minifloat import MiniFloat


def values_of(number: MiniFloat) -> list[float]:
    """All finite values >= 0, ascending; the index is the code."""
    out = []
    for code in range(number.largest + 1):
        field, fraction = divmod(code, 1 << number.mantissa_bits)
        significand = Fraction(fraction, 1 << number.mantissa_bits) + (1 if field else 0)
        out.append(float(significand * Fraction(2) ** (max(field, 1) - number.bias)))
    return out


def nearest_codes(x: Tensor, number: MiniFloat) -> Tensor:
    """uint8 codes of finite values: nearest, ties to even codes, the largest beyond it; in fp64, where all is
    exact for the values tested here."""
    values = torch.tensor(values_of(number), dtype=torch.float64)
    magnitude = x.double().abs()
    above = torch.searchsorted(values, magnitude).clamp(max=len(values) - 1)
    below = (above - 1).clamp(min=0)
    to_above, to_below = values[above] - magnitude, magnitude - values[below]
    up = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    codes = torch.where(up, above, below)
    return (codes + x.signbit().long() * number.sign).to(torch.uint8)


def halfway(number: MiniFloat) -> Tensor:
    """fp32: all values, all points halfway between two, the one where the largest overflows, and the fp32
    neighbours of all of them; of both signs."""
    values = torch.tensor(values_of(number), dtype=torch.float64)
    step_beyond = values[-1] + (values[-1] - values[-2])
    points = torch.cat([values, (values[1:] + values[:-1]) / 2, (values[-1:] + step_beyond) / 2]).float()
    infinity = torch.full_like(points, torch.inf)
    near = torch.cat([points, points.nextafter(infinity), points.nextafter(-infinity)])
    return torch.cat([near, -near])


def sweep(seed: int = 0) -> Tensor:
    """fp32 from 2^-20 to 2^20, 512 to an octave, of random signs; tiny, subnormal and huge ones; zeros."""
    generator = torch.Generator().manual_seed(seed)
    octaves = 2.0 ** torch.arange(-20, 21)
    values = (octaves[:, None] * (1 + torch.rand(41, 512, generator=generator))).flatten()
    signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
    edges = [0.0, -0.0, 1e-45, -1e-40, 1e-38, 2.0**-126, 1e-30, -1e-30, 1e30, -3e38, 3.4028234663852886e38]
    return torch.cat([values * signs, torch.tensor(edges)])
