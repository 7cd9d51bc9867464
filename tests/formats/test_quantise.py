"""Quantised values are what the recipes' formulas say, on ordinary values and at the edges."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nearest import nearest_codes
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.formats import e8m0
from fasteomt.formats.delayed import DelayedAmax
from fasteomt.formats.minifloat import E2M1, E4M3, decode
from fasteomt.formats.packing import pack, unpack
from fasteomt.formats.quantise import quantise
from fasteomt.formats.recipe import RECIPES, Delayed, Dynamic, Fp8, Granularity, Mx, NvFp4, Recipe, Static

DYNAMIC = [r for r in RECIPES.values() if isinstance(r, Mx) or r.source == Dynamic()]
EACH = pytest.mark.parametrize("recipe", DYNAMIC, ids=lambda recipe: recipe.name)
OF_BLOCKS = [recipe for recipe in DYNAMIC if recipe.block > 1]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def outliers(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Values whose rows and columns differ by orders of magnitude."""
    x = normal(rows, columns, seed=seed)
    powers = torch.randint(-12, 12, (rows, 1), generator=torch.Generator().manual_seed(seed))
    return x * 2.0**powers * (1 + 50 * (torch.arange(columns) % 37 == 0))


def blocks_of(x: Tensor, size: int) -> Tensor:
    return x.view(x.shape[0], -1, size)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shapes_dtypes_and_errors_within_half_a_step(recipe: Recipe, dtype: torch.dtype) -> None:
    x = normal(3, 5, 256).to(dtype)
    q = quantise(x, recipe)
    assert q.codes.dtype == torch.uint8
    assert q.codes.shape == (15, 256 * recipe.number.bits // 8)
    assert q.scales.dtype == (torch.float32 if isinstance(recipe, Fp8) else torch.uint8)
    y = q.dequantise()
    assert (y.dtype, y.shape) == (torch.float32, x.shape)
    worst = {"e4m3": 1 / 8, "e5m2": 1 / 4, "e2m1": 1.0}[recipe.number.name]  # steps, relative to values
    amax = x.float().abs().max()
    assert ((y - x.float()).abs() <= worst * x.float().abs() + amax / 16).all()
    assert torch.equal(q.codes, quantise(x.float(), recipe).codes)


def test_bits_per_value() -> None:
    x = normal(16, 1024)
    bits = {recipe.name: quantise(x, recipe).bits_per_value for recipe in DYNAMIC}
    assert bits["fp8_e4m3-tensor"] == 8
    assert bits["fp8_e4m3-row"] == 8 + 32 / 1024
    assert bits["fp8_e5m2-channel"] == 8 + 32 / 16
    assert bits["fp8_e4m3-1x128"] == bits["mxfp8"] == bits["mxfp8-ceil"] == 8.25
    assert bits["nvfp4"] == 4.5
    assert bits["mxfp4"] == 4.25


@pytest.mark.parametrize("elements", ["e4m3", "e5m2"])
def test_fp8_by_the_formula(elements: str) -> None:
    x = outliers(6, 256)
    for granularity, amax in {
        Granularity.TENSOR: x.abs().max().view(1, 1),
        Granularity.ROW: x.abs().amax(1, keepdim=True),
        Granularity.CHANNEL: x.abs().amax(0, keepdim=True),
        Granularity.BLOCK: blocks_of(x.abs(), 128).amax(2),
    }.items():
        recipe = Fp8(elements, granularity)
        q = quantise(x, recipe)
        assert torch.equal(q.scales, amax / recipe.number.max)
        wide = q.scales.repeat_interleave(256 // q.scales.shape[1], 1)
        assert torch.equal(q.codes, nearest_codes(x * (1 / wide), recipe.number))
        assert torch.equal(q.dequantise(), decode(q.codes, recipe.number) * wide)
        assert q.saturated == 0


@pytest.mark.parametrize("recipe", [r for r in DYNAMIC if isinstance(r, Mx)], ids=lambda r: r.name)
def test_mx_by_the_formula(recipe: Mx) -> None:
    x = outliers(6, 256)
    q = quantise(x, recipe)
    amax = blocks_of(x.double().abs(), 32).amax(2)
    exponent = amax.log2().floor() - recipe.number.emax
    if recipe.rule == e8m0.Rule.CEIL:
        exponent = (amax / recipe.number.max).log2().ceil()
    assert torch.equal(q.scales.double() - 127, exponent)
    scaled = blocks_of(x, 32).double() / 2.0 ** exponent[:, :, None]
    codes = nearest_codes(scaled.view_as(x), recipe.number)
    assert torch.equal(q.codes, codes if recipe.number is E4M3 else pack(codes))
    past = scaled.abs() >= {"e4m3": 464.0001, "e2m1": 7.0}[recipe.elements]
    assert q.saturated == past.sum()
    assert (q.saturated > 0) == (recipe.rule == e8m0.Rule.FLOOR)


def test_nvfp4_by_the_formula() -> None:
    x = outliers(6, 256)
    q = quantise(x, NvFp4())
    assert q.tensor_scale is not None
    assert torch.equal(q.tensor_scale, x.abs().max() / (448 * 6))
    amax = blocks_of(x.abs(), 16).amax(2)
    assert torch.equal(q.scales, nearest_codes(amax / 6 / q.tensor_scale, E4M3))
    scales = decode(q.scales, E4M3)
    assert scales.max() == 448 and scales.min() < 1
    inverse = torch.where(scales == 0, 0, 1 / q.tensor_scale / scales)
    codes = nearest_codes((blocks_of(x, 16) * inverse[:, :, None]).view_as(x), E2M1)
    assert torch.equal(q.codes, pack(codes))
    exact = decode(codes, E2M1).double() * scales.double().repeat_interleave(16, 1)
    assert torch.equal(q.dequantise(), (exact * q.tensor_scale.double()).float())


@pytest.mark.parametrize("recipe", [Mx("e4m3"), Mx("e2m1"), NvFp4()], ids=lambda recipe: recipe.name)
def test_block_values_are_exact(recipe: Recipe) -> None:
    q = quantise(outliers(8, 256), recipe)
    scales = decode(q.scales, E4M3) if isinstance(recipe, NvFp4) else e8m0.decode(q.scales)
    exact = q.element_values().double() * scales.double().repeat_interleave(recipe.block, 1)
    assert torch.equal(q.block_values().double(), exact)
    assert torch.equal(q.block_values().bfloat16().double(), exact)


def test_every_nvfp4_block_product_is_exact_in_bf16() -> None:
    elements = decode(torch.arange(16, dtype=torch.uint8), E2M1)
    scales = decode(torch.arange(0x7F, dtype=torch.uint8), E4M3)
    products = elements[:, None].double() * scales.double()
    assert torch.equal(products.bfloat16().double(), products)
    assert torch.equal(elements[:, None].bfloat16() * scales.bfloat16(), products.bfloat16())
    assert not torch.equal(products.to(torch.float8_e4m3fn).double(), products)


@EACH
def test_zeros(recipe: Recipe) -> None:
    q = quantise(torch.zeros(4, 256), recipe)
    assert not q.dequantise().any() and q.saturated == 0
    if isinstance(recipe, Fp8):
        assert (q.scales == 1).all()
    elif isinstance(recipe, Mx):
        assert (e8m0.decode(q.scales) == 1).all()
    else:
        assert q.tensor_scale == 1 and not q.scales.any()


@EACH
@pytest.mark.parametrize("size", [1e-45, 1e-40, 2.0**-126, 1e-30, 1e30, 2.0**126])
def test_tensors_of_any_size_have_finite_scales(recipe: Recipe, size: float) -> None:
    x = torch.full((2, 256), size) * torch.linspace(-1, 1, 256)
    q = quantise(x, recipe)
    y = q.dequantise()
    assert y.isfinite().all()
    assert (y.abs() <= 1.5 * x.abs().max()).all()
    if size >= 2.0**-100:
        assert (y - x).norm() <= 0.2 * x.norm()


@pytest.mark.parametrize("recipe", OF_BLOCKS, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-30])
def test_small_blocks_among_ordinary_ones(recipe: Recipe, size: float) -> None:
    x = normal(4, 512)
    x[1, : recipe.block] = size
    q = quantise(x, recipe)
    y = q.dequantise()
    assert y.isfinite().all()
    small = y[1, : recipe.block]
    if isinstance(recipe, NvFp4):
        assert q.scales[1, 0] == 0 and not small.any()  # E4M3 scales don't reach as far
    else:
        assert ((small - x[1, : recipe.block]).abs() <= 0.25 * size + 2e-39).all()
    rest = torch.ones_like(x, dtype=torch.bool)
    rest[1, : recipe.block] = False
    undisturbed = quantise(normal(4, 512), recipe).dequantise()
    if recipe.block == 16:
        assert torch.equal(y[2:], undisturbed[2:])
    assert torch.equal(y[rest], undisturbed[rest])


@EACH
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_shares_a_dynamic_scale_with_nan_or_infinity_is_nan(recipe: Recipe, bad: float) -> None:
    x = normal(4, 256)
    x[1, 130] = bad
    y = quantise(x, recipe).dequantise()
    expected = torch.zeros_like(x, dtype=torch.bool)
    match recipe:
        case Fp8(granularity=Granularity.TENSOR) | NvFp4():
            expected[:] = True
        case Fp8(granularity=Granularity.ROW):
            expected[1] = True
        case Fp8(granularity=Granularity.CHANNEL):
            expected[:, 130] = True
        case _:
            start = 130 // recipe.block * recipe.block
            expected[1, start : start + recipe.block] = True
    assert torch.equal(y.isnan(), expected)


def test_nan_and_infinity_under_a_given_scale() -> None:
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.0]])
    q = quantise(x, Fp8(source=Static()), torch.tensor(0.5))
    y = q.dequantise()
    assert y[0, 0].isnan()
    assert y[0, 1:].tolist() == [224.0, -224.0, 1.0]
    assert q.saturated == 2

    x = normal(2, 64)
    x[0, 3] = torch.inf
    y = quantise(x, NvFp4(Static()), torch.tensor(1e-3)).dequantise()
    assert y[0, :16].isnan().all() and y.isfinite().sum() == 128 - 16


@EACH
@settings(deadline=None)
@given(data=st.data())
def test_the_largest_value_survives(recipe: Recipe, data: st.DataObject) -> None:
    """Unless the scale is rounded down, nothing saturates, and amax comes back within half a step."""
    size = data.draw(st.floats(2.0**-100, 2.0**120, width=32))
    x = normal(1, 128, seed=3)
    x = x / x.abs().max() * size
    q = quantise(x, recipe)
    largest = float(q.dequantise().abs().max())
    if isinstance(recipe, Mx) and recipe.rule == e8m0.Rule.FLOOR:
        assert largest >= float(x.abs().max()) * (0.74 if recipe.elements == "e2m1" else 0.87)
    else:
        assert q.saturated == 0
        half_step = {"e4m3": 1 / 16, "e5m2": 1 / 8, "e2m1": 1 / 4}[recipe.number.name]
        assert largest == pytest.approx(float(x.abs().max()), rel=half_step)


def test_static_scales() -> None:
    x = outliers(4, 256)
    for granularity in Granularity:
        dynamic = quantise(x, Fp8("e4m3", granularity))
        static = quantise(x, Fp8("e4m3", granularity, Static()), dynamic.scales)
        assert torch.equal(dynamic.codes, static.codes)
    half = quantise(x, Fp8(source=Static()), x.abs().max() / 448 / 2)
    assert half.saturated == (x.abs() >= 464 / 448 * x.abs().max() / 2).sum() > 0
    given_scale = torch.tensor([2.0])
    q = quantise(x, NvFp4(Static()), given_scale)
    assert q.tensor_scale == 2 and q.tensor_scale.shape == ()


@pytest.mark.parametrize("recipe", [Fp8(), Mx("e2m1"), NvFp4()], ids=lambda recipe: recipe.name)
def test_stochastic_rounding_keeps_the_mean(recipe: Recipe) -> None:
    """Constant 0.3 next to a 1 that fixes the scale: in the mean over 4096 draws within 3 sigma."""
    x = torch.full((4096, 32), 0.3)
    x[:, ::16] = 1.0
    nearest, stochastic = quantise(x, recipe), quantise(x, recipe, seed=7)
    assert torch.equal(nearest.scales, stochastic.scales)
    drawn = stochastic.dequantise()[:, 1].double()
    low, high = float(drawn.min()), float(drawn.max())
    assert low < 0.3 < high
    sigma = math.sqrt((0.3 - low) * (high - 0.3) / 4096)
    assert abs(float(drawn.mean()) - 0.3) <= 3 * sigma
    assert torch.equal(quantise(x, recipe, seed=7).codes, stochastic.codes)
    assert not torch.equal(quantise(x, recipe, seed=8).codes, stochastic.codes)


def test_views_are_quantised_as_their_copies() -> None:
    x = normal(64, 8, 32).permute(1, 2, 0)
    for recipe in (Fp8(), Mx(), Mx("e2m1"), NvFp4()):
        a, b = quantise(x, recipe, seed=1), quantise(x.contiguous(), recipe, seed=1)
        assert torch.equal(a.codes, b.codes) and a.shape == b.shape == x.shape
    assert quantise(normal(4, 32).requires_grad_(), Mx()).dequantise().requires_grad is False


@pytest.mark.parametrize(
    ("x", "recipe", "given_scale", "message"),
    [
        (torch.zeros(4, 48), Mx(), None, r"shape \(4, 48\) as mxfp8: rows of a multiple of 32 values"),
        (torch.zeros(4, 24), NvFp4(), None, "multiple of 16"),
        (torch.zeros(4, 192), Fp8(granularity=Granularity.BLOCK), None, "multiple of 128"),
        (torch.zeros(()), Fp8(), None, "rows of values are needed"),
        (torch.zeros(0, 32), Fp8(), None, "rows of values are needed"),
        (torch.zeros(4, 32).double(), Mx(), None, "float64: convert to float32"),
        (torch.zeros(4, 32), Mx(), torch.ones(1), "none can be given"),
        (torch.zeros(4, 32), Fp8(), torch.ones(1), "nothing is needed"),
        (torch.zeros(4, 32), Fp8(source=Static()), None, r"NoneType: a float32 tensor of shape \(1, 1\)"),
        (torch.zeros(4, 32), Fp8(source=Static()), torch.ones(1).double(), "float64"),
        (torch.zeros(4, 32), Fp8("e4m3", Granularity.ROW, Static()), torch.ones(4), r"shape \(4, 1\)"),
        (torch.zeros(4, 32), NvFp4(Delayed()), torch.ones(1), "a DelayedAmax of delayed16x2 is needed"),
        (torch.zeros(4, 32), NvFp4(Delayed(8)), DelayedAmax(Delayed()), "a DelayedAmax of delayed8x2"),
    ],
)
def test_what_cannot_be_quantised(
    x: Tensor, recipe: Recipe, given_scale: Tensor | DelayedAmax | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        quantise(x, recipe, given_scale)


def quack_quantiser() -> ModuleType:
    """QuACK's quantisers, plain torch in one file; the package around it needs CUTLASS."""
    found = importlib.util.find_spec("quack")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("QuACK, another implementation of the quantisers, is not installed")
    path = Path(found.submodule_search_locations[0]) / "blockscaled" / "quantize.py"
    if not path.is_file():
        pytest.skip("this version of QuACK has its quantisers elsewhere")
    spec = importlib.util.spec_from_file_location("quack_quantize", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e20])
def test_codes_and_scales_are_quacks(size: float) -> None:
    quack = quack_quantiser()
    x = outliers(64, 512, seed=5) * size
    for rule in ("floor", "ceil"):
        ours = quantise(x, Mx("e4m3", e8m0.Rule(rule)))
        codes, scales = quack.to_mx(x, scaling_mode={"floor": "floor", "ceil": "rceil"}[rule])
        assert torch.equal(ours.scales, scales.view(torch.uint8))
        assert torch.equal(ours.codes, codes.view(torch.uint8))
    ours = quantise(x, Mx("e2m1"))
    codes, scales = quack.to_mxfp4(x)
    assert torch.equal(ours.scales, scales.view(torch.uint8))
    assert torch.equal(ours.codes, codes)


def test_nvfp4_codes_and_scales_are_quacks() -> None:
    """Where block scales are normal E4M3 numbers: QuACK raises smaller ones to 2^-6."""
    quack = quack_quantiser()
    x = outliers(64, 512, seed=6)
    ours = quantise(x, NvFp4())
    codes, scales, _ = quack.to_nvfp4(x, per_tensor_scale=ours.tensor_scale)
    usual = decode(ours.scales, E4M3) > 2.0**-6
    assert usual.float().mean() > 0.3
    assert torch.equal(ours.scales[usual], scales.view(torch.uint8)[usual])
    by_block = [unpack(c).view(64, -1, 16)[usual] for c in (ours.codes, codes)]
    assert torch.equal(*by_block)
