"""Recipes have readable names and a JSON form that comes back."""

from __future__ import annotations

import dataclasses

import pytest

from fasteomt.errors import InputError
from fasteomt.formats.e8m0 import Rule
from fasteomt.formats.recipe import (
    RECIPES,
    Delayed,
    Fp8,
    Granularity,
    Mx,
    NvFp4,
    Recipe,
    Static,
    from_json,
    recipe_named,
    to_json,
)


def test_names() -> None:
    assert recipe_named("fp8_e4m3-tensor") == Fp8()
    assert recipe_named("fp8_e5m2-1x128-static") == Fp8("e5m2", Granularity.BLOCK, Static())
    assert recipe_named("mxfp8") == Mx()
    assert recipe_named("mxfp4-ceil") == Mx("e2m1", Rule.CEIL)
    assert recipe_named("nvfp4-delayed16x2") == NvFp4(Delayed())
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert len(RECIPES) == 2 * (4 * 2 + 1) + 2 * 2 + 3
    with pytest.raises(InputError, match=r"unknown recipe 'fp9': choose one of fp8_e4m3-tensor, "):
        recipe_named("fp9")


@pytest.mark.parametrize(
    "recipe", [*RECIPES.values(), NvFp4(Delayed(4, 1.25))], ids=lambda recipe: recipe.name
)
def test_json_form(recipe: Recipe) -> None:
    assert from_json(to_json(recipe)) == recipe
    assert hash(recipe) == hash(from_json(to_json(recipe)))


def test_json_is_readable() -> None:
    assert to_json(Mx()) == '{"elements": "e4m3", "format": "mx", "rule": "floor"}'
    assert (
        to_json(Fp8(source=Delayed(8))) == '{"elements": "e4m3", "format": "fp8", "granularity": "tensor", '
        '"source": {"headroom": 2.0, "history": 8}}'
    )
    assert from_json('{"format": "nvfp4"}') == NvFp4()


@pytest.mark.parametrize(
    "text",
    [
        "nvfp4",
        "[]",
        "{}",
        '{"format": "mxfp6"}',
        '{"format": "mx", "block": 64}',
        '{"format": "mx", "granularity": "row"}',
        '{"format": "mx", "rule": "nearest"}',
        '{"format": "fp8", "granularity": "128x128"}',
        '{"format": "fp8", "source": "amax"}',
        '{"format": "fp8", "source": {"history": 4, "window": 2}}',
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a recipe"):
        from_json(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fp8("e2m1"), "elements 'e2m1': choose e4m3 or e5m2"),
        (lambda: Fp8("e4m3", "2x2"), "granularity '2x2': choose one of tensor, row, channel, 1x128"),
        (lambda: Fp8(granularity=Granularity.ROW, source=Delayed()), "not of each row"),
        (lambda: Mx("e5m2"), "elements 'e5m2': choose e4m3 or e2m1"),
        (lambda: Mx(rule="up"), "rule 'up': choose one of floor, ceil"),
        (lambda: Delayed(0), "history 0"),
        (lambda: Delayed(2.5), "history 2.5"),
        (lambda: Delayed(headroom=0.5), "headroom 0.5"),
        (lambda: Delayed(headroom=float("nan")), "headroom nan"),
    ],
)
def test_settings_that_make_no_sense(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_recipes_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mx().rule = Rule.CEIL
