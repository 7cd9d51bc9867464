"""FP8 and FP4 codes are those of the formats' definitions, of ml_dtypes and of torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nearest import halfway, nearest_codes, sweep, values_of
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.formats.minifloat import E2M1, E4M3, E5M2, MiniFloat, decode, encode
from fasteomt.formats.philox import random_words

NUMBERS = pytest.mark.parametrize("number", [E4M3, E5M2, E2M1], ids=lambda number: number.name)
FP8 = pytest.mark.parametrize(
    ("number", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)], ids=["e4m3", "e5m2"]
)
FP32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
NEAR = st.one_of(FP32, st.floats(-512, 512, width=32), st.floats(-8, 8, width=32))


def points(number: MiniFloat) -> Tensor:
    return torch.cat([halfway(number), sweep()])


def all_codes(number: MiniFloat) -> Tensor:
    return torch.arange(1 << number.bits, dtype=torch.uint8)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN to NaN, zeros with their signs."""
    signs = a.signbit().eq(b.signbit()) | a.isnan()
    return bool(torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)) and signs.all())


def test_the_limits_of_the_formats() -> None:
    assert [(n.bits, n.emax, n.emin, n.max) for n in (E4M3, E5M2, E2M1)] == [
        (8, 8, -6, 448.0),
        (8, 15, -14, 57344.0),
        (4, 2, 0, 6.0),
    ]
    assert decode(torch.tensor([1], dtype=torch.uint8), E4M3) == 2.0**-9
    assert decode(torch.tensor([1], dtype=torch.uint8), E5M2) == 2.0**-16
    assert decode(all_codes(E2M1)[:8], E2M1).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@NUMBERS
def test_each_code_decodes_as_defined(number: MiniFloat) -> None:
    values = torch.tensor(values_of(number))
    assert torch.equal(decode(all_codes(number)[: len(values)], number), values)
    assert torch.equal(decode(all_codes(number)[: len(values)] + number.sign, number), -values)


@FP8
def test_each_code_decodes_as_torch_reads_it(number: MiniFloat, dtype: torch.dtype) -> None:
    codes = all_codes(number)
    assert same_values(decode(codes, number), codes.view(dtype).float())


@NUMBERS
def test_codes_are_the_nearest_of_all(number: MiniFloat) -> None:
    x = points(number)
    assert torch.equal(encode(x, number).codes, nearest_codes(x, number))


@FP8
def test_codes_are_those_of_torchs_casts_in_range(number: MiniFloat, dtype: torch.dtype) -> None:
    x = points(number)
    x = x[x.abs() <= number.max]  # beyond it some versions give NaN, others saturate
    assert torch.equal(encode(x, number).codes, x.to(dtype).view(torch.uint8))


@NUMBERS
def test_codes_are_those_of_ml_dtypes(number: MiniFloat) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes, another implementation of the formats")
    names = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn"}
    dtype = getattr(ml_dtypes, names[number.name])
    codes = all_codes(number)
    theirs = torch.from_numpy(codes.numpy().view(dtype).astype("float32"))
    assert same_values(decode(codes, number), theirs)

    x = points(number)
    rounded = torch.from_numpy(x.numpy().astype(dtype).view("uint8"))
    # Beyond the largest number ml_dtypes gives NaN or infinity in FP8, and saturates in FP4, as it does here.
    overflowed = rounded.int() & (number.sign - 1) > number.largest
    found = encode(x, number)
    assert torch.equal(found.codes[~overflowed], rounded[~overflowed])
    assert (found.codes[overflowed].int() & (number.sign - 1) == number.largest).all()
    if number is not E2M1:
        assert found.saturated == overflowed.sum() > 0


@NUMBERS
def test_nan_and_infinities(number: MiniFloat) -> None:
    nan = torch.tensor([torch.nan, -torch.nan])
    assert encode(nan, number).saturated == 0
    expected = number.largest if number.nan is None else number.nan
    for seed in (None, 1):
        assert encode(nan, number, seed).codes.tolist() == [expected, expected]
        codes, saturated = encode(torch.tensor([torch.inf, -torch.inf]), number, seed)
        assert decode(codes, number).tolist() == [number.max, -number.max]
        assert saturated == 2


@pytest.mark.parametrize(
    ("number", "last", "first"), [(E4M3, 464, 465), (E5M2, 61439, 61440), (E2M1, 6.999, 7)]
)
def test_what_rounds_beyond_the_largest_is_counted(number: MiniFloat, last: float, first: float) -> None:
    """Halfway to the number that would come next is where it starts: E4M3's largest code is even, the others'
    are odd."""
    assert encode(torch.tensor([last, -last, number.max, 0.0]), number).saturated == 0
    codes, saturated = encode(torch.tensor([[first, 1.0], [-first, 1e30]]), number)
    assert saturated == 3
    assert decode(codes, number).tolist() == [[number.max, 1.0], [-number.max, number.max]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_values_are_exact(dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    for number in (E4M3, E5M2, E2M1):
        assert torch.equal(encode(x, number).codes, encode(x.float(), number).codes)


def test_fp64_is_refused() -> None:
    with pytest.raises(InputError, match=r"float64: convert to float32"):
        encode(torch.zeros(2, dtype=torch.float64), E4M3)


def test_views_and_empty_tensors() -> None:
    x = sweep()[:512].view(16, 32).t()
    assert torch.equal(encode(x, E4M3).codes, nearest_codes(x.contiguous(), E4M3))
    assert encode(torch.zeros(0, 8), E4M3, seed=1).codes.shape == (0, 8)


@NUMBERS
@settings(deadline=None)
@given(x=NEAR, y=NEAR)
def test_rounding_is_monotone_symmetric_and_idempotent(number: MiniFloat, x: float, y: float) -> None:
    values = torch.tensor([min(x, y), max(x, y), -x, x])
    codes = encode(values, number).codes
    rounded = decode(codes, number)
    assert rounded[0] <= rounded[1]
    assert codes[2] == codes[3] ^ number.sign
    assert torch.equal(encode(rounded, number).codes, codes)


@NUMBERS
@settings(deadline=None)
@given(x=NEAR)
def test_no_number_is_nearer(number: MiniFloat, x: float) -> None:
    rounded = decode(encode(torch.tensor([x]), number).codes, number).double()
    clipped = max(-number.max, min(number.max, x))
    distances = (decode(all_codes(number), number).double() - clipped).abs()
    assert (rounded - clipped).abs() == distances[distances.isfinite()].min()


@NUMBERS
@settings(deadline=None)
@given(x=NEAR, seed=st.integers(0, 2**63 - 1))
def test_stochastic_rounding_takes_a_neighbour(number: MiniFloat, x: float, seed: int) -> None:
    rounded = float(decode(encode(torch.tensor([x]), number, seed).codes, number))
    values = [v for v in decode(all_codes(number), number).tolist() if abs(v) <= number.max]
    clipped = max(-number.max, min(number.max, x))
    assert rounded in (
        max(v for v in values if v <= clipped),
        min(v for v in values if v >= clipped),
    )


@NUMBERS
def test_stochastic_rounding_keeps_numbers(number: MiniFloat) -> None:
    values = torch.tensor(values_of(number))
    assert torch.equal(decode(encode(values, number, seed=3).codes, number), values)


@NUMBERS
@pytest.mark.parametrize("x", [0.3, -0.3, 1.3, 2.0**-10 * 1.5, 5.7])
def test_stochastic_rounding_is_unbiased(number: MiniFloat, x: float) -> None:
    draws = 4096
    codes = encode(torch.full((draws,), x), number, seed=11).codes
    rounded = decode(codes, number).double()
    step = float(rounded.max() - rounded.min())
    exact = float(torch.tensor(x))
    share = (exact - float(rounded.min())) / step if step else 0.0
    sigma = step * (share * (1 - share) / draws) ** 0.5
    assert abs(float(rounded.mean()) - exact) <= 3 * sigma


def test_stochastic_rounding_follows_its_rule() -> None:
    """By Python integers: the dropped bits plus the random word's high bits carry, or don't."""
    x = 0.3 + torch.arange(64) / 64
    words = random_words(5, 64).tolist()
    expected = []
    for value, word in zip(x.tolist(), words, strict=True):
        steps = value / 2.0 ** (-2 if value < 0.5 else -1 if value < 1 else 0) * 8  # in E4M3's steps
        below = int(steps)
        dropped = int((steps - below) * (1 << 20))
        up = dropped + (word >> 12) >= 1 << 20
        expected.append((below + up) / steps * value)
    rounded = decode(encode(x, E4M3, seed=5).codes, E4M3)
    torch.testing.assert_close(rounded, torch.tensor(expected), rtol=1e-6, atol=0)
    assert not torch.equal(rounded, decode(encode(x, E4M3, seed=6).codes, E4M3))
    assert torch.equal(rounded[:5], decode(encode(x[:5], E4M3, seed=5).codes, E4M3))


def test_a_tiny_value_rounds_up_as_rarely_as_it_should() -> None:
    """2^-16 is 2^-7 steps of E4M3's subnormals, 2^-30 is 2^-21: by far fewer than all bits are dropped."""
    count = 1 << 16
    for value, expected in ((2.0**-16, 512), (2.0**-30, 0.03)):
        ups = int(encode(torch.full((count,), value), E4M3, seed=2).codes.sum())
        assert abs(ups - expected) <= 3 * expected**0.5 + 1
    assert not encode(torch.full((count,), 1e-30), E4M3, seed=2).codes.any()
