"""Gate H's statistics, fed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gate_samples import NAMES, result, square_mask

from fasteomt.errors import InputError
from fasteomt.gates.clip import ClipStatistics, confidence_error
from fasteomt.gates.limits import broken, load_limits
from fasteomt.result import Result

LIMITS = load_limits()


def statistics(
    frames: list[tuple[Result, Result]], truth: list[np.ndarray] | None = None, ignore: int | None = None
) -> ClipStatistics:
    out = ClipStatistics(NAMES, LIMITS, truth=truth is not None, ignore=ignore)
    for index, (reference, other) in enumerate(frames):
        out.update(reference, other, None if truth is None else truth[index])
    return out


def failures(found: ClipStatistics, *, truth: bool = False) -> list[str]:
    limits = LIMITS.tiers[0].of("H", truth=truth)
    return [one.split()[0] for one in broken(found.values(), limits)]


def test_equal_results_pass() -> None:
    one = result(square_mask(30))
    found = statistics([(one, one)] * 3, [square_mask(29)] * 3)
    to_truth = 29 * 29 / 900  # of the head, the worse of the two
    assert found.values() == {
        "pooled_iou": 1.0,
        "confidence_error_percent": 0.0,
        "frames": 3,
        "classes": 2,
        "truth_iou_lost_points": 0.0,
        "truth_iou_reference": pytest.approx(to_truth),
        "truth_iou": pytest.approx(to_truth),
    }
    assert failures(found, truth=True) == []


def test_pool_is_over_the_clip_and_small_classes_are_in_it() -> None:
    """A class of 100 pixels a frame: one frame wholly missed in ten is IoU 0.9 in the pool."""
    whole, missed = result(square_mask(10)), result(square_mask(0))
    found = statistics([(whole, whole)] * 9 + [(whole, missed)])
    assert found.values()["pooled_iou"] == pytest.approx(0.9)
    assert failures(found) == ["pooled_iou"]


def test_confidence_of_the_worst_frame_and_class() -> None:
    mask = square_mask(30)
    calm, off = (result(mask, 0.9), result(mask, 0.9)), (result(mask, 0.9), result(mask, 0.9 * 0.96))
    found = statistics([calm] * 20 + [off])
    assert found.values()["confidence_error_percent"] == pytest.approx(4)
    assert failures(found) == ["confidence_error_percent"]
    assert failures(statistics([(result(mask, 0.9), result(mask, 0.9 * 1.02))])) == []


def test_confidence_of_small_classes_is_not_judged() -> None:
    mask = square_mask(22)
    found = statistics([(result(mask, 0.9), result(mask, 0.1))])
    assert found.values()["confidence_error_percent"] == 0.0
    head = found.classes()[1]
    assert (head.reference_pixels, head.confidence_error_percent) == (484, None)


def test_a_class_that_vanishes_has_lost_all_confidence() -> None:
    found = statistics([(result(square_mask(30)), result(square_mask(0)))])
    assert found.values()["confidence_error_percent"] == 100.0


@pytest.mark.parametrize(
    ("reference", "found", "error"),
    [
        (0.8, 0.8, 0),
        (0.8, 0.4, 0.5),
        (0.8, 1.0, 0.25),
        (0.8, math.nan, 1),
        (0.8, math.inf, 1),
        (math.nan, 0.8, 1),
    ],
)
def test_confidence_error(reference: float, found: float, error: float) -> None:
    assert confidence_error(reference, found) == pytest.approx(error)


def test_iou_to_truth_lost() -> None:
    """The stack's head is one row short of the reference's, which is the truth."""
    mask = square_mask(30)
    short = mask.copy()
    short[10] = 0
    found = statistics([(result(mask), result(short))], [mask])
    values = found.values()
    assert values["truth_iou_lost_points"] == pytest.approx(100 / 30)
    assert (values["truth_iou_reference"], values["truth_iou"]) == (1.0, pytest.approx(29 / 30))
    assert "truth_iou_lost_points" in failures(found, truth=True)


def test_a_stack_nearer_to_the_truth_loses_nothing() -> None:
    found = statistics([(result(square_mask(31)), result(square_mask(30)))], [square_mask(30)])
    assert found.values()["truth_iou_lost_points"] < 0


def test_ignored_pixels_of_the_truth() -> None:
    mask = square_mask(30)
    truth = mask.copy()
    truth[:20] = 255
    short = mask.copy()
    short[10] = 0
    assert statistics([(result(mask), result(short))], [truth], 255).values()["truth_iou_lost_points"] == 0
    with pytest.raises(InputError, match="the truth holds id 255"):
        statistics([(result(mask), result(short))], [truth])


def test_what_proves_nothing_is_refused() -> None:
    empty, small = result(square_mask(0)), result(square_mask(4, 0, 20))
    with pytest.raises(InputError, match="the reference sees background in the clip"):
        statistics([(empty, empty)]).values()
    with pytest.raises(InputError, match="no class has 500 pixels in any frame"):
        statistics([(small, small)]).values()
    with pytest.raises(InputError, match="frame 0: true masks are for all frames or for none"):
        statistics([(empty, empty)], [None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="shape"):
        statistics([(empty, small)])


def test_report_of_each_class() -> None:
    mask = square_mask(30)
    background, head = statistics([(result(mask), result(square_mask(29)))]).report()
    assert (background["id"], background["name"], head["id"], head["name"]) == (0, "background", 7, "head")
    assert (head["reference_pixels"], head["pixels"]) == (900, 841)
    assert head["iou"] == pytest.approx(841 / 900)
    assert head["truth_iou"] is head["truth_iou_reference"] is None
