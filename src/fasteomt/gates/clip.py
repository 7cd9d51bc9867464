"""Gate H: masks, confidence and agreement with the truth over a whole clip."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fasteomt.errors import InputError
from fasteomt.gates.limits import Limits
from fasteomt.metrics import ConfusionMatrix
from fasteomt.result import Result


@dataclass(frozen=True)
class ClassAccuracy:
    """One class over the clip. IoU is None where the class neither occurs nor is predicted, and where there
    are no true masks; the confidence error (percent, worst frame) where it is never large enough."""

    id: int
    name: str
    reference_pixels: int
    pixels: int
    iou: float | None
    confidence_error_percent: float | None
    truth_iou_reference: float | None
    truth_iou: float | None


class ClipStatistics:
    """What gate H judges: sums over the frames of a clip, fed one by one.

    Args:
        names: the model's classes by id.
        truth: whether every frame comes with its true mask.
        ignore: id in true masks whose pixels are not counted.
    """

    def __init__(
        self, names: dict[int, str], limits: Limits, *, truth: bool = False, ignore: int | None = None
    ) -> None:
        self.frames = 0
        self._names, self._limits = names, limits
        self._pool = ConfusionMatrix(names)
        ignore = None if ignore in names else ignore
        self._truth = (ConfusionMatrix(names, ignore), ConfusionMatrix(names, ignore)) if truth else None
        self._worst: dict[int, float] = {}

    def update(self, reference: Result, result: Result, truth: np.ndarray | None = None) -> None:
        """Add one frame: the fp32 reference's result, the stack's, and (H, W) true class ids.

        Raises:
            InputError: masks of different shapes, an id that is no class, or a true mask too many or missing.
        """
        if (truth is None) != (self._truth is None):
            raise InputError(f"gate H: frame {self.frames}: true masks are for all frames or for none")
        before = self._pool.counts.copy()
        self._pool.update(reference.mask, result.mask)
        pixels = (self._pool.counts - before).sum(axis=1)
        for class_id in self._pool.ids[pixels >= self._limits.min_pixels].tolist():
            error = confidence_error(reference.confidence[class_id], result.confidence.get(class_id, 0.0))
            self._worst[class_id] = max(self._worst.get(class_id, 0.0), error)
        if self._truth is not None and truth is not None:
            for matrix, one in zip(self._truth, (reference, result), strict=True):
                matrix.update(truth, one.mask)
        self.frames += 1

    def values(self) -> dict[str, float]:
        """Worst class: pooled IoU, confidence error in percent and, with truth, IoU points lost to it; beside
        them the two IoU that were subtracted, how many frames, and how many classes the reference sees.

        Raises:
            InputError: the clip shows too little to judge.
        """
        classes = self.classes()
        seen = [one for one in classes if one.reference_pixels]
        if len(seen) < min(2, len(classes)):
            names = ", ".join(one.name for one in seen) or "nothing"
            raise InputError(
                f"gate H: the reference sees {names} in the clip: take one that shows more classes"
            )
        errors = [one.confidence_error_percent for one in classes if one.confidence_error_percent is not None]
        if not errors:
            raise InputError(
                f"gate H: no class has {self._limits.min_pixels} pixels in any frame: take larger frames"
            )
        values = {
            "pooled_iou": min(one.iou for one in classes if one.iou is not None),
            "confidence_error_percent": max(errors),
            "frames": self.frames,
            "classes": len(seen),
        }
        return values | self._lost(classes)

    def classes(self) -> list[ClassAccuracy]:
        """Every class, in order of ids."""
        iou = self._pool.iou()
        to_truth = [matrix.iou() for matrix in self._truth] if self._truth is not None else [{}, {}]
        reference, predicted = self._pool.counts.sum(axis=1), self._pool.counts.sum(axis=0)
        return [
            ClassAccuracy(
                id=class_id,
                name=self._names[class_id],
                reference_pixels=int(reference[row]),
                pixels=int(predicted[row]),
                iou=_number(iou[class_id]),
                confidence_error_percent=(100 * self._worst[class_id] if class_id in self._worst else None),
                truth_iou_reference=_number(to_truth[0].get(class_id)),
                truth_iou=_number(to_truth[1].get(class_id)),
            )
            for row, class_id in enumerate(self._pool.ids.tolist())
        ]

    def report(self) -> list[dict[str, Any]]:
        """`classes` as JSON has it."""
        return [asdict(one) for one in self.classes()]

    def _lost(self, classes: list[ClassAccuracy]) -> dict[str, float]:
        if self._truth is None:
            return {}
        occurs = self._truth[0].counts.sum(axis=1) > 0
        both = [
            (one.truth_iou_reference, one.truth_iou)
            for one, there in zip(classes, occurs, strict=True)
            if there and one.truth_iou_reference is not None and one.truth_iou is not None
        ]
        if not both:
            raise InputError("gate H: the true masks hold no class of the model: check --truth")
        # Of equal losses the class that is worse off.
        reference, found = max(both, key=lambda pair: (pair[0] - pair[1], -pair[1]))
        return {
            "truth_iou_lost_points": 100 * (reference - found),
            "truth_iou_reference": reference,
            "truth_iou": found,
        }


def confidence_error(reference: float, found: float) -> float:
    """|found - reference| / reference; 1 where either is no finite number, or the reference has none."""
    if not (math.isfinite(reference) and math.isfinite(found) and reference > 0):
        return 1.0
    return abs(found - reference) / reference


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
