"""FP8 and FP4 numbers: uint8 codes from fp32 values and back, by integer arithmetic on fp32's bits.

E4M3 and E5M2: OCP 8-bit Floating Point Specification (OFP8) v1.0, section 5. E2M1: OCP Microscaling Formats
(MX) v1.0, section 5.3.3. A code is sign, exponent, mantissa from the highest bit, and lies in a byte's low
bits.

Encoding saturates, as `cvt.rn.satfinite` of PTX does: what rounds beyond the largest number becomes that
number, and so do infinities, E5M2's too; NaN becomes the positive NaN, or in E2M1, which has none, the
largest number. Zeros keep their sign, and so do numbers that round to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.formats.philox import random_words

_FP32_BIAS = 127
_FP32_MANTISSA = 23
_LONGEST_DROP = 31  # bits; then significand plus random bits fit into 32 bits, as a kernel has them


@dataclass(frozen=True)
class MiniFloat:
    """`largest`: code of the largest finite number. `nan`, `infinity`: positive codes, None where there is
    none (other codes above `largest` are NaN too)."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: int
    nan: int | None = None
    infinity: int | None = None

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign(self) -> int:
        """The sign's bit in a code."""
        return 1 << (self.bits - 1)

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def emax(self) -> int:
        """Exponent of the largest number: 8, 15 and 2 for E4M3, E5M2 and E2M1."""
        return (self.largest >> self.mantissa_bits) - self.bias

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number, and of the subnormal ones."""
        return 1 - self.bias

    @property
    def max(self) -> float:
        """The largest number: 448, 57344 and 6 for E4M3, E5M2 and E2M1."""
        fraction = self.largest & ((1 << self.mantissa_bits) - 1)
        return float(2**self.emax) * (1 + fraction / (1 << self.mantissa_bits))


E4M3 = MiniFloat("e4m3", 4, 3, largest=0x7E, nan=0x7F)
E5M2 = MiniFloat("e5m2", 5, 2, largest=0x7B, nan=0x7F, infinity=0x7C)
E2M1 = MiniFloat("e2m1", 2, 1, largest=0x7)
MINIFLOATS = {number.name: number for number in (E4M3, E5M2, E2M1)}


class Encoded(NamedTuple):
    """`codes`: uint8, one a byte. `saturated`: () int64, how many values rounded beyond the largest number or
    were infinite."""

    codes: Tensor
    saturated: Tensor


def encode(x: Tensor, number: MiniFloat, seed: int | None = None) -> Encoded:
    """Codes of fp32, fp16 or bf16 values, of `x`'s shape.

    Without a seed a value becomes the nearest number, of two the one with an even code. With one it is
    rounded stochastically: up in magnitude with the probability of its distance from the number below in
    steps, so that it is kept in the mean (to 2^-31 of a step; not where it saturates). Element i in row-major
    order takes word i of `philox.random_words`: it rounds up if its dropped bits plus as many of the word's
    high bits carry.

    Raises:
        InputError: another dtype (fp64 would be rounded twice), or a seed outside 0 .. 2^63 - 1.
    """
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(f"cannot quantise {x.dtype}: convert to float32, float16 or bfloat16 first")
    bits = x.detach().float().contiguous().view(torch.int32).long()
    magnitude = bits & 0x7FFFFFFF
    field = magnitude >> _FP32_MANTISSA
    significand = (magnitude & 0x7FFFFF) | (field > 0).long() << _FP32_MANTISSA
    exponent = field.clamp(min=1) - _FP32_BIAS

    # Subnormal numbers have the same step, so the further a value lies below emin, the more bits it loses.
    drop = _FP32_MANTISSA - number.mantissa_bits + (number.emin - exponent).clamp(min=0)
    significand = significand >> (drop - _LONGEST_DROP).clamp(0, _FP32_MANTISSA + 1)
    drop = drop.clamp(max=_LONGEST_DROP)
    if seed is None:
        even = significand >> drop & 1
        rounded = significand + torch.bitwise_left_shift(1, drop - 1) - 1 + even
    else:
        words = random_words(seed, x.numel(), x.device).view(x.shape)
        rounded = significand + (words >> (32 - drop))

    # A carry out of the mantissa moves on into the exponent, as does the implicit bit.
    codes = (exponent.clamp(min=number.emin) - number.emin << number.mantissa_bits) + (rounded >> drop)
    is_nan = field.eq(0xFF) & (magnitude & 0x7FFFFF).ne(0)
    saturated = (codes > number.largest) & ~is_nan
    codes = codes.clamp(max=number.largest) + (bits < 0).long() * number.sign
    codes = torch.where(is_nan, number.largest if number.nan is None else number.nan, codes)
    return Encoded(codes.to(torch.uint8), saturated.sum())


def decode(codes: Tensor, number: MiniFloat) -> Tensor:
    """fp32 values of uint8 codes, of their shape; exact. A byte's bits above the code are ignored."""
    wide = codes.long()
    magnitude = wide & (number.sign - 1)
    field = magnitude >> number.mantissa_bits
    implicit = (field > 0).long() << number.mantissa_bits
    significand = (magnitude & ((1 << number.mantissa_bits) - 1)) | implicit
    values = significand.float() * power_of_two(field.clamp(min=1) - number.bias - number.mantissa_bits)
    values = torch.where(magnitude > number.largest, torch.nan, values)
    if number.infinity is not None:
        values = torch.where(magnitude == number.infinity, torch.inf, values)
    return torch.where(wide & number.sign != 0, -values, values)


def power_of_two(exponent: Tensor) -> Tensor:
    """fp32 2^exponent of int64 exponents from -127 to 127, made from bits: exact on any device."""
    field = exponent + _FP32_BIAS
    bits = torch.where(field > 0, field << _FP32_MANTISSA, 1 << (_FP32_MANTISSA - 1))  # 2^-127 is subnormal
    return bits.int().view(torch.float32)
