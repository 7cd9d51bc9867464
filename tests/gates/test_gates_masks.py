"""Gate M's statistics, fed by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from gate_samples import NAMES, square_mask

from fasteomt.errors import InputError
from fasteomt.gates.limits import broken, load_limits
from fasteomt.gates.masks import Cosine, FrameCosines, MaskLogits, MaskStatistics

LIMITS = load_limits()


def statistics(pairs: list[tuple[np.ndarray, np.ndarray]], cosine: float = 1.0) -> MaskStatistics:
    out = MaskStatistics(NAMES, LIMITS)
    for index, (reference, mask) in enumerate(pairs):
        if out.wants(index):
            out.update(index, FrameCosines(cosine, 1.0), reference, mask)
    return out


def failures(found: MaskStatistics, tier: int = 0) -> list[str]:
    return [one.split()[0] for one in broken(found.values(), LIMITS.tiers[tier].masks)]


def cosine(x: torch.Tensor, y: torch.Tensor, pieces: int = 1) -> float:
    out = Cosine()
    for a, b in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
        out.update(a, b)
    return out.value


def test_cosine_is_of_all_pieces_together() -> None:
    x, y = torch.randn(2, 6, 5, 4, generator=torch.Generator().manual_seed(0)).unbind()
    expected = float((x * y).sum() / (x.norm() * y.norm()))
    assert cosine(x, y) == pytest.approx(expected, abs=1e-6)
    assert cosine(x, y, pieces=3) == pytest.approx(cosine(x, y), abs=1e-12)
    assert cosine(x, x) == pytest.approx(1, abs=1e-12)


def test_cosine_sees_what_fp32_sums_lose() -> None:
    """A deviation of 1e-4 beside large values; squares in fp32 would round it away."""
    x = torch.full((4096,), 300.0)
    y = x.clone()
    y[::2] += 3e-2
    assert 0 < 1 - cosine(x, y) < 1e-8


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_cosine_of_what_is_no_number(bad: float) -> None:
    x = torch.ones(8)
    y = x.clone()
    y[3] = bad
    assert cosine(x, y) == cosine(y, y) == -1
    assert cosine(x, torch.zeros(8)) == -1


def test_queries_that_are_no_objects_weigh_little_beside_all() -> None:
    """Query 1 is none and wrong, then query 0 is one and wrong."""
    masks = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    classes = torch.tensor([[9.0, 0, -9], [-9, -9, 9]]).expand(2, 2, 3)
    for wrong, visible in ((1, False), (0, True)):
        other = masks.clone()
        other[:, wrong] *= -1
        found = MaskLogits()
        for batch in (slice(0, 1), slice(1, 2)):
            found.update((masks[batch], classes[batch]), (other[batch], classes[batch]))
        assert abs(found.cosines.all) < 0.5
        assert found.cosines.objects == pytest.approx(-1 if visible else 1, abs=1e-6)


def test_equal_masks_pass() -> None:
    found = statistics([(square_mask(30), square_mask(30))] * 8)
    assert found.values() == {
        "cosine": 1.0,
        "iou": 1.0,
        "cosine_of_objects": 1.0,
        "mask_pooled_iou": 1.0,
        "mask_frames": 8,
        "mask_classes": 2,
    }
    assert failures(found) == []


def test_one_frame_decides() -> None:
    pairs = [(square_mask(30), square_mask(30))] * 7 + [(square_mask(30), square_mask(30, at=11))]
    found = statistics(pairs)
    assert found.values()["iou"] == pytest.approx(29 * 29 / (2 * 900 - 29 * 29))
    assert failures(found) == ["iou"]
    assert failures(statistics(pairs[:1] * 8, cosine=0.99985)) == ["cosine"]
    assert failures(statistics(pairs[:1] * 8, cosine=0.99985), tier=1) == []


def test_small_classes_are_not_judged_by_frame() -> None:
    """22 x 22 = 484 pixels, all missed; one more row and column and the miss counts."""
    small = statistics([(square_mask(22), square_mask(0))] * 8)
    assert small.values()["iou"] == pytest.approx((4096 - 484) / 4096)
    assert (small.values()["mask_classes"], small.values()["mask_pooled_iou"]) == (1, 0.0)
    assert statistics([(square_mask(23), square_mask(0))] * 8).values()["iou"] == 0.0


def test_flipped_ties_on_one_percent_of_pixels_fail() -> None:
    rng = np.random.default_rng(0)
    reference = square_mask(30)
    flipped = reference.copy()
    places = rng.permutation(reference.size)[: reference.size // 100]
    flipped.flat[places] = np.where(reference.flat[places] == 7, 0, 7)
    assert failures(statistics([(reference, flipped)] * 8)) == ["iou"]


@pytest.mark.parametrize("count", [8, 9, 15, 16, 17, 126, 1000, 4097])
def test_frames_are_evenly_spaced_whatever_the_length(count: int) -> None:
    found = statistics([(square_mask(30), square_mask(30))] * count)
    indices = [frame.index for frame in found.chosen()]
    gaps = np.diff(indices)
    assert len(indices) == 8
    assert indices[0] == 0
    assert count - 1 - indices[-1] < count / 8
    assert gaps.min() >= 1
    # One step of the stride at most, which is at most an eighth of the clip.
    assert gaps.max() - gaps.min() <= max(1, count / 8)
    assert len(found._kept) < 16


def test_too_few_frames_or_pixels() -> None:
    with pytest.raises(InputError, match="the clip has 7 frames, fewer than 8"):
        statistics([(square_mask(30), square_mask(30))] * 7).values()
    with pytest.raises(InputError, match="no class has 500 pixels in any frame"):
        statistics([(square_mask(4, 0, 20), square_mask(4, 0, 20))] * 8).values()


def test_limits_come_from_the_table() -> None:
    limits = dataclasses.replace(LIMITS, frames=2, min_pixels=100)
    found = MaskStatistics(NAMES, limits)
    for index in range(2):
        found.update(index, FrameCosines(1.0, 1.0), square_mask(10), square_mask(5))
    assert found.values()["iou"] == 0.25
