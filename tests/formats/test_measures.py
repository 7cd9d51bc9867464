"""Errors of the formats on normal values are the known ones."""

from __future__ import annotations

import math

import pytest
import torch

from fasteomt.formats.measures import dissimilarity, gemm_error, measure, relative_l2
from fasteomt.formats.quantise import quantise
from fasteomt.formats.recipe import Delayed, Static, recipe_named

# Relative L2 errors of quantising standard normal values, and of a product of two such matrices. The former
# are what other quantisers get (.027, .095, .114); a product has both operands' errors, sqrt(2) as much.
EXPECTED = {
    "fp8_e4m3-tensor": (0.0265, 0.0375),
    "fp8_e4m3-row": (0.0264, 0.0373),
    "fp8_e4m3-1x128": (0.0257, 0.0364),
    "fp8_e5m2-tensor": (0.0525, 0.0743),
    "mxfp8": (0.0294, 0.0415),
    "mxfp8-ceil": (0.0266, 0.0376),
    "nvfp4": (0.0953, 0.135),
    "mxfp4": (0.115, 0.163),
    "mxfp4-ceil": (0.1155, 0.163),
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items(), ids=list(EXPECTED))
def test_errors_on_normal_values(name: str, expected: tuple[float, float]) -> None:
    x = torch.randn(256, 1024, generator=torch.Generator().manual_seed(1))
    found = measure(x, quantise(x, recipe_named(name)))
    of_tensor, of_product = expected
    assert found.relative_l2 == pytest.approx(of_tensor, rel=0.02)
    assert found.dissimilarity == pytest.approx(found.relative_l2**2 / 2, rel=0.03)
    assert gemm_error(recipe_named(name), size=256) == pytest.approx(of_product, rel=0.03)
    assert of_product == pytest.approx(math.sqrt(2) * of_tensor, rel=0.01)


def test_shares() -> None:
    recipe = recipe_named("fp8_e4m3-tensor-static")
    assert recipe.source == Static() != Delayed()
    x = torch.tensor([500.0, -600.0, 1.0, 2.0**-11, -(2.0**-12), 0.0, 448.0, 0.1])
    found = measure(x, quantise(x, recipe, torch.ones(1)))
    assert (found.saturated, found.underflowed) == (2 / 8, 2 / 8)
    assert found.max_abs == 152.0


def test_measures_by_hand() -> None:
    x, y = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])
    assert relative_l2(x, y) == 0.2
    assert dissimilarity(x, y) == pytest.approx(1 - 2 * 21 / (25 + 18))
    zero = torch.zeros(2)
    assert relative_l2(zero, zero) == dissimilarity(zero, zero) == 0.0
    assert relative_l2(zero, x) == math.inf
    assert math.isnan(relative_l2(x, x * math.nan))
