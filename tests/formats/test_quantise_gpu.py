"""A GPU gives the bits that the CPU gives."""

from __future__ import annotations

import pytest
import torch
from nearest import halfway, sweep
from test_quantise import DYNAMIC, EACH, outliers

from fasteomt.formats import e8m0
from fasteomt.formats.minifloat import E2M1, E4M3, E5M2, decode, encode
from fasteomt.formats.quantise import quantise
from fasteomt.formats.recipe import Recipe
from fasteomt.formats.scale_layout import swizzle

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("number", [E4M3, E5M2, E2M1], ids=lambda number: number.name)
@pytest.mark.parametrize("seed", [None, 5])
def test_codes(number, seed) -> None:
    x = torch.cat([halfway(number), sweep(), torch.tensor([torch.nan, torch.inf, -torch.inf])])
    here, there = encode(x, number, seed), encode(x.cuda(), number, seed)
    assert torch.equal(here.codes, there.codes.cpu())
    assert here.saturated == there.saturated.cpu()
    codes = torch.arange(1 << number.bits, dtype=torch.uint8)
    expected, found = decode(codes, number), decode(codes.cuda(), number).cpu()
    is_number = ~expected.isnan()  # what bits a NaN has is the processor's choice
    assert torch.equal(found.isnan(), ~is_number)
    assert torch.equal(found[is_number].view(torch.int32), expected[is_number].view(torch.int32))


def test_scales() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(
        e8m0.decode(codes).view(torch.int32), e8m0.decode(codes.cuda()).cpu().view(torch.int32)
    )
    scales = torch.randint(0, 255, (300, 10), dtype=torch.uint8)
    assert torch.equal(swizzle(scales), swizzle(scales.cuda()).cpu())


@EACH
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e-40, 1e30])
def test_quantised_values(recipe: Recipe, size: float) -> None:
    assert recipe in DYNAMIC
    x = outliers(32, 512) * size
    here, there = quantise(x, recipe, seed=3), quantise(x.cuda(), recipe, seed=3)
    assert torch.equal(here.codes, there.codes.cpu())
    assert torch.equal(here.scales, there.scales.cpu())
    assert torch.equal(here.dequantise(), there.dequantise().cpu())
