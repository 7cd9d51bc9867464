"""The limits of the gates, from limits.toml, and which of them a plan has to keep."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fasteomt.errors import InputError, brief, one_line
from fasteomt.plan import Plan

TABLE = Path(__file__).parent / "limits.toml"
BITS = (16, 8, 4)
# What each gate must have a limit for, and the largest value that a limit may have.
_REQUIRED = {
    "M": {"min_cosine": 1.0, "min_iou": 1.0},
    "H": {"min_pooled_iou": 1.0, "max_confidence_error_percent": 100.0, "max_truth_iou_lost_points": 100.0},
}


@dataclass(frozen=True)
class Tier:
    """Limits of the plans whose narrowest format has `bits` bits; `masks` are gate M's, `clip` gate H's."""

    bits: int
    formats: tuple[str, ...]
    masks: Mapping[str, float]
    clip: Mapping[str, float]

    def of(self, gate: str, *, truth: bool) -> dict[str, float]:
        """The limits of one gate; those on true masks only with `truth`."""
        clip = {limit: bound for limit, bound in self.clip.items() if truth or "truth" not in limit}
        return {
            "M": dict(self.masks),
            "H": clip,
            "G": {"max_differing_values": 0.0, "max_eager_differing_values": 0.0},
            "O": {**self.masks, **clip},
        }[gate]


@dataclass(frozen=True)
class Limits:
    """`frames`: how many gate M looks at; `min_pixels`: of a class in a frame, to be judged there alone."""

    frames: int
    min_pixels: int
    tiers: tuple[Tier, ...]  # 16, 8, 4 bits

    def tier(self, plan: Plan) -> Tier:
        """The tier of the narrowest format in a plan.

        Raises:
            InputError: a format that is in no tier.
        """
        place = {name: index for index, tier in enumerate(self.tiers) for name in tier.formats}
        for group in plan.groups:
            if group.recipe not in place:
                raise InputError(
                    f"plan {plan.hash}: site {group.sites[0]}: format {brief(group.recipe)} is in no tier of "
                    f"{TABLE.name}: add it there"
                )
        return self.tiers[max((place[group.recipe] for group in plan.groups), default=0)]


def broken(values: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Which limits the values don't keep, e.g. ['iou 0.9712 < 0.98']. NaN keeps no limit.

    Raises:
        InputError: a limit without its value.
    """
    out = []
    for limit, bound in limits.items():
        kind, name = limit.split("_", 1)
        if name not in values:
            raise InputError(f"gate: nothing was measured for the limit {limit}: run the gate again")
        value = values[name]
        if not (value >= bound if kind == "min" else value <= bound):
            # All digits: rounded, a value just past its limit would look as if it kept it.
            out.append(f"{name} {value!r} {'<' if kind == 'min' else '>'} {bound!r}")
    return out


@cache
def load_limits(path: Path = TABLE) -> Limits:
    """Read and check a table of limits.

    Raises:
        InputError: not TOML, something missing, unknown or out of range, a format in two tiers, or a narrower
            tier with a stricter limit.
    """
    try:
        return _checked(tomllib.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not a table of limits: {type(error).__name__}: {one_line(error)}"
        ) from None


def _checked(raw: dict[str, Any]) -> Limits:
    if raw.keys() != {"frames", "min_pixels", "tier"}:
        raise ValueError(f"it holds {sorted(raw)}, not frames, min_pixels and tier")
    if set(raw["tier"]) != {str(bits) for bits in BITS}:
        raise ValueError(f"its tiers are {sorted(raw['tier'])}, not {BITS}")
    for name, least in (("frames", 2), ("min_pixels", 1)):
        if type(raw[name]) is not int or raw[name] < least:
            raise ValueError(f"{name} is {brief(raw[name])}: must be a whole number, {least} or more")
    tiers = tuple(_tier(bits, raw["tier"][str(bits)]) for bits in BITS)
    formats = [name for tier in tiers for name in tier.formats]
    if len(set(formats)) != len(formats):
        raise ValueError("a format is in two tiers")
    for wide, narrow in itertools.pairwise(tiers):
        for gate in ("masks", "clip"):
            for limit, bound in getattr(wide, gate).items():
                other = getattr(narrow, gate)[limit]
                if (other > bound) if limit.startswith("min_") else (other < bound):
                    raise ValueError(f"{limit} is stricter at {narrow.bits} bits than at {wide.bits}")
    return Limits(raw["frames"], raw["min_pixels"], tiers)


def _tier(bits: int, raw: dict[str, Any]) -> Tier:
    if raw.keys() != {"formats", *_REQUIRED}:
        raise ValueError(f"tier {bits} holds {sorted(raw)}, not formats, {', '.join(_REQUIRED)}")
    if not raw["formats"] or not all(isinstance(name, str) for name in raw["formats"]):
        raise ValueError(f"tier {bits}: formats must be names")
    for gate, required in _REQUIRED.items():
        if raw[gate].keys() != required.keys():
            raise ValueError(
                f"tier {bits}: gate {gate} has limits {sorted(raw[gate])}, not {sorted(required)}"
            )
        for limit, most in required.items():
            value = raw[gate][limit]
            if isinstance(value, bool) or not (math.isfinite(value) and 0 <= value <= most):
                raise ValueError(f"tier {bits}: {limit} is {brief(value)}: must be 0 to {most:g}")
    masks, clip = ({k: float(v) for k, v in raw[gate].items()} for gate in ("M", "H"))
    return Tier(bits, tuple(raw["formats"]), masks, clip)
