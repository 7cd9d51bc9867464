"""Power-of-two scales: codes, and the two rules that choose them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fasteomt.formats import e8m0
from fasteomt.formats.e8m0 import Rule
from fasteomt.formats.minifloat import E2M1, E4M3, E5M2, MiniFloat, decode, encode

NUMBERS = pytest.mark.parametrize("number", [E4M3, E5M2, E2M1], ids=lambda number: number.name)
ALL_CODES = torch.arange(256, dtype=torch.uint8)
AMAX = st.floats(2.0**-149, 2.0**127 * (2 - 2.0**-23), width=32)


def scale(amax: float, number: MiniFloat, rule: Rule) -> float:
    return float(e8m0.decode(e8m0.encode_amax(torch.tensor([amax]), number, rule)))


def test_each_code_is_a_power_of_two() -> None:
    decoded = e8m0.decode(ALL_CODES)
    assert decoded[:-1].double().log2().tolist() == list(range(-127, 128))
    assert decoded[-1].isnan()


def test_codes_are_those_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes, another implementation of the formats")
    theirs = torch.from_numpy(ALL_CODES.numpy().view(ml_dtypes.float8_e8m0fnu).astype("float32"))
    assert torch.equal(e8m0.decode(ALL_CODES)[:-1], theirs[:-1])
    assert theirs[-1].isnan()


def test_codes_are_those_of_torch() -> None:
    assert torch.equal(e8m0.decode(ALL_CODES)[:-1], ALL_CODES.view(torch.float8_e8m0fnu).float()[:-1])


@NUMBERS
@settings(deadline=None)
@given(amax=AMAX)
def test_floor_rule(number: MiniFloat, amax: float) -> None:
    exponent = math.frexp(amax)[1] - 1  # floor(log2), without a logarithm's rounding
    assert scale(amax, number, Rule.FLOOR) == 2.0 ** max(-127, exponent - number.emax)


@NUMBERS
@settings(deadline=None)
@given(amax=AMAX)
def test_ceil_rule_gives_the_smallest_scale_without_saturation(number: MiniFloat, amax: float) -> None:
    found = scale(amax, number, Rule.CEIL)
    assert amax / found <= number.max
    assert amax / (found / 2) > number.max or found == 2.0**-127


@NUMBERS
@pytest.mark.parametrize("power", [-100, -9, 0, 9, 100])
def test_rules_around_the_largest_element(number: MiniFloat, power: int) -> None:
    """Up to the largest element times a power of two both agree; past it the ceil rule doubles the scale."""
    unit = 2.0**power
    amax = torch.tensor(number.max * unit)
    past = float(amax.nextafter(torch.tensor(torch.inf)))
    assert scale(float(amax), number, Rule.FLOOR) == scale(float(amax), number, Rule.CEIL) == unit
    assert (scale(past, number, Rule.FLOOR), scale(past, number, Rule.CEIL)) == (unit, 2 * unit)


@pytest.mark.parametrize("rule", list(Rule))
def test_zero_subnormal_and_bad_amax(rule: Rule) -> None:
    amax = torch.tensor([0.0, 1e-45, 1e-40, 1e-30, torch.inf, torch.nan])
    codes = e8m0.encode_amax(amax, E4M3, rule)
    assert codes.dtype == torch.uint8
    assert codes.tolist()[:3] == [127, 0, 0]
    assert codes.tolist()[4:] == [255, 255]
    # The smallest scale makes 2^-9 · 2^-127 the smallest value: 1e-40 is kept, if coarsely; 1e-45 is lost.
    values = decode(encode(amax[:4] / e8m0.decode(codes[:4]), E4M3).codes, E4M3) * e8m0.decode(codes[:4])
    assert values[:2].tolist() == [0, 0]
    torch.testing.assert_close(values[2:], amax[2:4], rtol=2**-4, atol=0)
