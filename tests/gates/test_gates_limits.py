"""The table of limits: what is shipped, what is refused, and which tier a plan falls into."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fasteomt.errors import InputError
from fasteomt.gates.limits import TABLE, broken, load_limits
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.plan import FORMATS, Group, Plan
from fasteomt.stacks import STACKS


def plan(*recipes: str) -> Plan:
    return Plan(tuple(Group((f"site{i}",), "torch", recipe) for i, recipe in enumerate(recipes)))


def test_shipped_limits() -> None:
    """Typed a second time: a change of the table is a change of what the project promises."""
    limits = load_limits()
    assert (limits.frames, limits.min_pixels) == (8, 500)
    found = [(t.bits, *t.of("O", truth=True).values()) for t in limits.tiers]
    assert found == [
        (16, 0.9999, 0.98, 0.99, 3, 0.3),
        (8, 0.999, 0.95, 0.99, 6, 0.5),
        (4, 0.99, 0.90, 0.95, 10, 1),
    ]


def test_limits_of_each_gate() -> None:
    tier = load_limits().tiers[0]
    assert tier.of("M", truth=True) == {"min_cosine": 0.9999, "min_iou": 0.98}
    assert tier.of("H", truth=False) == {"min_pooled_iou": 0.99, "max_confidence_error_percent": 3}
    assert tier.of("O", truth=False) == tier.of("M", truth=False) | tier.of("H", truth=False)
    assert tier.of("G", truth=True) == {"max_differing_values": 0, "max_eager_differing_values": 0}


@pytest.mark.parametrize(
    ("recipes", "bits"),
    [
        (["fp32"], 16),
        (["fp32", "bf16"], 16),
        (["bf16", "fp8_e4m3", "bf16"], 8),
        (["mxfp4", "mxfp8"], 4),
        (["nvfp4"], 4),
    ],
)
def test_the_narrowest_format_decides(recipes: list[str], bits: int) -> None:
    assert load_limits().tier(plan(*recipes)).bits == bits


def test_every_format_and_stack_has_a_tier(small_spec: ModelSpec) -> None:
    for recipe in FORMATS:
        load_limits().tier(plan(recipe))
    for stack in STACKS.values():
        assert load_limits().tier(stack.plan(small_spec, target.CPU)).bits == 16


def test_unknown_format() -> None:
    with pytest.raises(InputError, match="site1: format 'int4' is in no tier"):
        load_limits().tier(plan("bf16", "int4"))


def test_broken_limits() -> None:
    limits = {"min_iou": 0.98, "max_error": 3.0}
    assert broken({"iou": 0.98, "error": 3.0}, limits) == []
    assert broken({"iou": 0.9799999, "error": 3.0000001}, limits) == [
        "iou 0.9799999 < 0.98",
        "error 3.0000001 > 3.0",
    ]
    assert len(broken({"iou": math.nan, "error": math.nan}, limits)) == 2
    with pytest.raises(InputError, match="nothing was measured for the limit max_error"):
        broken({"iou": 1.0}, limits)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("frames = 8", "frames = 1"),
        ("frames = 8", "frames = 8.0"),
        ("frames = 8", "frames = 8\nmore = 1"),
        ("min_pixels = 500", "min_pixels = 0"),
        ("min_iou = 0.98", "min_iou = 0.94"),  # laxer than the 8-bit tier
        ("min_iou = 0.98", "min_iou = 1.01"),
        ("min_iou = 0.98", "min_iou = nan"),
        ("min_iou = 0.98", "min_iou = true"),
        ("min_iou = 0.98", 'min_iou = "0.98"'),
        ("min_iou = 0.98", "min_iuo = 0.98"),
        ("min_cosine = 0.9999, ", ""),
        ("max_confidence_error_percent = 3,", "max_confidence_error_percent = 7,"),
        ('"bf16", ', '"bf16", "mxfp4", '),
        ('"bf16", ', '"bf16", 8, '),
        ("[tier.4]", "[tier.2]"),
        ("[tier.4]", "[tier.4"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, old: str, new: str) -> None:
    text = TABLE.read_text("utf-8")
    assert old in text
    path = tmp_path / "limits.toml"
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(InputError, match=r"limits\.toml: not a table of limits"):
        load_limits(path)
