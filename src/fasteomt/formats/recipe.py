"""Recipes: which elements a tensor is made of, which scales go with them, and where scales come from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fasteomt.errors import InputError, brief
from fasteomt.formats.e8m0 import Rule
from fasteomt.formats.minifloat import E2M1, MINIFLOATS, MiniFloat

MX_BLOCK = 32
NVFP4_BLOCK = 16
FP8_BLOCK = 128


class Granularity(StrEnum):
    """What shares an fp32 scale. A tensor of shape (..., K) counts as a matrix of rows of K values.

    TENSOR: all. ROW: a row: a token of activations (M, K), an output channel of weights (N, K). CHANNEL: a
    column: an output channel of weights stored as (K, N). BLOCK: 128 consecutive values of a row.
    """

    TENSOR = "tensor"
    ROW = "row"
    CHANNEL = "channel"
    BLOCK = "1x128"


@dataclass(frozen=True)
class Dynamic:
    """Scales come from the largest magnitudes of the very tensor."""

    @property
    def name(self) -> str:
        return "dynamic"


@dataclass(frozen=True)
class Static:
    """Scales are given, from a calibration."""

    @property
    def name(self) -> str:
        return "static"


@dataclass(frozen=True)
class Delayed:
    """A tensor's scale comes from the largest magnitude of the `history` tensors before it, times `headroom`,
    so that it can grow by that factor before it saturates."""

    history: int = 16
    headroom: float = 2.0

    def __post_init__(self) -> None:
        if type(self.history) is not int or self.history < 1:
            raise InputError(
                f"delayed scales: history {brief(self.history)}: a whole number from 1 up is needed"
            )
        if not isinstance(self.headroom, int | float) or not 1 <= self.headroom < math.inf:
            raise InputError(f"delayed scales: headroom {brief(self.headroom)}: a factor from 1 up is needed")

    @property
    def name(self) -> str:
        return f"delayed{self.history}x{self.headroom:g}"


Source = Dynamic | Static | Delayed


def _suffix(source: Source) -> str:
    return "" if isinstance(source, Dynamic) else f"-{source.name}"


@dataclass(frozen=True)
class Fp8:
    """FP8 elements (`e4m3` or `e5m2`) with fp32 scales.

    Raises:
        InputError: other elements or granularity, or delayed scales of anything but a whole tensor.
    """

    elements: str = "e4m3"
    granularity: Granularity = Granularity.TENSOR
    source: Source = Dynamic()

    def __post_init__(self) -> None:
        if self.elements not in ("e4m3", "e5m2"):
            raise InputError(f"recipe fp8: elements {brief(self.elements)}: choose e4m3 or e5m2")
        if self.granularity not in list(Granularity):
            choices = ", ".join(Granularity)
            raise InputError(f"recipe fp8: granularity {brief(self.granularity)}: choose one of {choices}")
        if isinstance(self.source, Delayed) and self.granularity != Granularity.TENSOR:
            raise InputError(
                f"recipe fp8: delayed scales are of whole tensors, not of each {self.granularity}"
            )

    @property
    def name(self) -> str:
        return f"fp8_{self.elements}-{self.granularity}" + _suffix(self.source)

    @property
    def number(self) -> MiniFloat:
        return MINIFLOATS[self.elements]

    @property
    def block(self) -> int:
        """Values along a row that K must be a multiple of."""
        return FP8_BLOCK if self.granularity == Granularity.BLOCK else 1


@dataclass(frozen=True)
class Mx:
    """MXFP8 (`e4m3`) or MXFP4 (`e2m1`): an E8M0 scale for 32 values of a row, from these values.

    OCP Microscaling Formats (MX) v1.0, section 5.2.

    Raises:
        InputError: other elements or rule.
    """

    elements: str = "e4m3"
    rule: Rule = Rule.FLOOR

    def __post_init__(self) -> None:
        if self.elements not in ("e4m3", "e2m1"):
            raise InputError(f"recipe mx: elements {brief(self.elements)}: choose e4m3 or e2m1")
        if self.rule not in list(Rule):
            raise InputError(f"recipe mx: rule {brief(self.rule)}: choose one of {', '.join(Rule)}")

    @property
    def name(self) -> str:
        return f"mxfp{self.number.bits}" + ("" if self.rule == Rule.FLOOR else f"-{self.rule}")

    @property
    def number(self) -> MiniFloat:
        return MINIFLOATS[self.elements]

    @property
    def block(self) -> int:
        return MX_BLOCK


@dataclass(frozen=True)
class NvFp4:
    """E2M1 elements, an E4M3 scale for 16 values of a row, and one fp32 scale of the tensor, from `source`.

    NVIDIA, "Pretraining Large Language Models with NVFP4" (arXiv:2509.25149).
    """

    source: Source = Dynamic()

    @property
    def name(self) -> str:
        return "nvfp4" + _suffix(self.source)

    @property
    def number(self) -> MiniFloat:
        return E2M1

    @property
    def block(self) -> int:
        return NVFP4_BLOCK


Recipe = Fp8 | Mx | NvFp4


def _standard() -> Iterator[Recipe]:
    for elements in ("e4m3", "e5m2"):
        for granularity in Granularity:
            yield Fp8(elements, granularity)
            yield Fp8(elements, granularity, Static())
        yield Fp8(elements, source=Delayed())
    for elements in ("e4m3", "e2m1"):
        yield from (Mx(elements, rule) for rule in Rule)
    yield from (NvFp4(source) for source in (Dynamic(), Static(), Delayed()))


# By the name that plans use.
RECIPES = {recipe.name: recipe for recipe in _standard()}


def recipe_named(name: str) -> Recipe:
    """One of `RECIPES`.

    Raises:
        InputError: no such name.
    """
    if name not in RECIPES:
        raise InputError(f"unknown recipe {brief(name)}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def to_json(recipe: Recipe) -> str:
    """Any recipe on one line, keys sorted: `{"elements": "e4m3", "format": "mx", "rule": "floor"}`."""
    fields: dict[str, object] = {"format": type(recipe).__name__.lower()}
    for key, value in vars(recipe).items():
        if isinstance(value, Dynamic | Static):
            fields[key] = value.name
        else:
            fields[key] = vars(value) if isinstance(value, Delayed) else str(value)
    return json.dumps(fields, sort_keys=True)


def from_json(text: str) -> Recipe:
    """Inverse of `to_json`.

    Raises:
        InputError: not a recipe, or with unknown fields or values.
    """
    try:
        fields = json.loads(text)
        kind = _KINDS[fields.pop("format")]
        return kind(**{key: _FIELDS[key](value) for key, value in fields.items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"not a recipe: {type(error).__name__}: {error}") from None


def _source(value: object) -> Source:
    if isinstance(value, dict):
        return Delayed(**value)
    return _PLAIN_SOURCES[str(value)]


_PLAIN_SOURCES: dict[str, Source] = {"dynamic": Dynamic(), "static": Static()}
_KINDS: dict[str, Callable[..., Recipe]] = {"fp8": Fp8, "mx": Mx, "nvfp4": NvFp4}
_FIELDS: dict[str, Callable[[Any], object]] = {
    "elements": str,
    "granularity": Granularity,
    "rule": Rule,
    "source": _source,
}
