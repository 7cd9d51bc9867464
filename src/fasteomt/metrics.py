"""Intersection over union and pixel accuracy, from one confusion matrix over a whole data set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fasteomt.errors import InputError

# Pixels per step: bounds the temporary memory, whatever the size of an image.
_CHUNK = 1 << 22


@dataclass(frozen=True)
class ClassScore:
    """One class over the data set; `iou` is None where it neither occurs nor is predicted."""

    id: int
    name: str
    iou: float | None
    true_pixels: int
    predicted_pixels: int
    correct_pixels: int


@dataclass(frozen=True)
class SegmentationReport:
    """What a confusion matrix says. `mean_iou` and `pixel_accuracy` are NaN when no pixel was counted."""

    scores: tuple[ClassScore, ...]
    mean_iou: float  # over the classes that occur or are predicted
    pixel_accuracy: float
    absent: tuple[int, ...]  # classes left out of the mean
    pixels: int  # counted
    ignored_pixels: int
    confusion: tuple[tuple[int, ...], ...]  # pixels by [true class][predicted class], in order of ids


class ConfusionMatrix:
    """Counts of (true class, predicted class) over all pixels of a data set.

    Being sums over the data set, the figures don't depend on how the images were batched.

    Args:
        ids: the class ids that truth and prediction may hold.
        ignore: id in the truth whose pixels are not counted; never a valid prediction.
    """

    def __init__(self, ids: Iterable[int], ignore: int | None = None) -> None:
        self.ids = np.array(sorted(ids), dtype=np.int64)
        if self.ids.size == 0 or np.unique(self.ids).size != self.ids.size:
            raise InputError(f"class ids {self.ids.tolist()} must be distinct, and at least one")
        if ignore is not None and ignore in self.ids:
            raise InputError(f"ignore id {ignore} is a class id too: choose another one")
        self.ignore = ignore
        self.counts = np.zeros((self.ids.size, self.ids.size), dtype=np.int64)  # [true, predicted]
        self.ignored_pixels = 0
        self._tables: dict[np.dtype, np.ndarray] = {}

    def update(self, true: np.ndarray, predicted: np.ndarray) -> None:
        """Add the pixels of one image or batch.

        Args:
            true, predicted: integer arrays of class ids, of the same shape.

        Raises:
            InputError: the shapes differ, or an id is outside the class set. Nothing is counted then.
        """
        true, predicted = np.asarray(true), np.asarray(predicted)
        if true.shape != predicted.shape:
            raise InputError(f"prediction has shape {predicted.shape} but the truth has {true.shape}")
        counts, ignored = np.zeros_like(self.counts), 0
        true, predicted = true.reshape(-1), predicted.reshape(-1)
        for start in range(0, true.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            rows, columns = self._index(true[part]), self._index(predicted[part])
            self._check(columns < 0, predicted[part], "prediction")
            if self.ignore is not None:
                kept = true[part] != self.ignore
                ignored += int(kept.size - np.count_nonzero(kept))
                self._check((rows < 0) & kept, true[part], "truth")
                rows, columns = rows[kept], columns[kept]
            else:
                self._check(rows < 0, true[part], "truth")
            size = self.ids.size
            counts += np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)
        self.counts += counts
        self.ignored_pixels += ignored

    def iou(self) -> dict[int, float]:
        """Class id -> intersection / union; NaN for a class that neither occurs nor is predicted."""
        correct = np.diag(self.counts)
        union = self.counts.sum(axis=0) + self.counts.sum(axis=1) - correct
        return {
            int(i): float(c / u) if u else math.nan for i, c, u in zip(self.ids, correct, union, strict=True)
        }

    def report(self, names: Mapping[int, str]) -> SegmentationReport:
        """Per-class scores, in order of ids, and their summary."""
        iou = self.iou()
        true, predicted, correct = self.counts.sum(axis=1), self.counts.sum(axis=0), np.diag(self.counts)
        scores = tuple(
            ClassScore(
                id=key,
                name=names[key],
                iou=None if math.isnan(value) else value,
                true_pixels=int(true[row]),
                predicted_pixels=int(predicted[row]),
                correct_pixels=int(correct[row]),
            )
            for row, (key, value) in enumerate(iou.items())
        )
        present = [score.iou for score in scores if score.iou is not None]
        pixels = int(self.counts.sum())
        return SegmentationReport(
            scores=scores,
            mean_iou=sum(present) / len(present) if present else math.nan,
            pixel_accuracy=int(correct.sum()) / pixels if pixels else math.nan,
            absent=tuple(score.id for score in scores if score.iou is None),
            pixels=pixels,
            ignored_pixels=self.ignored_pixels,
            confusion=tuple(map(tuple, self.counts.tolist())),
        )

    def _index(self, values: np.ndarray) -> np.ndarray:
        """Position of each value in `ids`, -1 where it isn't one."""
        if values.dtype not in (np.uint8, np.uint16):
            return self._search(values)
        # One lookup per pixel instead of a search.
        if values.dtype not in self._tables:
            self._tables[values.dtype] = self._search(np.arange(np.iinfo(values.dtype).max + 1))
        return self._tables[values.dtype][values]

    def _search(self, values: np.ndarray) -> np.ndarray:
        index = np.searchsorted(self.ids, values).clip(max=self.ids.size - 1)
        return np.where(self.ids[index] == values, index, -1)

    def _check(self, wrong: np.ndarray, values: np.ndarray, what: str) -> None:
        if wrong.any():
            known = self.ids.tolist()[:20]
            raise InputError(
                f"the {what} holds id {values[wrong][0]}, which is not one of the classes {known}"
            )
