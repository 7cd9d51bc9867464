"""Run a model over a data set and score its masks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fasteomt.data.dataset import SegmentationSet
from fasteomt.errors import InputError
from fasteomt.metrics import ConfusionMatrix, SegmentationReport


class HasMask(Protocol):
    """What a prediction must offer: (H, W) class ids."""

    @property
    def mask(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on the first `images` samples of a data set.

    `images_per_s` is of prediction alone (RGB array in, mask out), without reading files, scoring, or the
    first image, which pays for warming up; None for a single image.
    """

    report: SegmentationReport
    images: int
    images_per_s: float | None
    seconds: float  # everything: reading, predicting, scoring


def check_classes(model: Mapping[int, str], dataset: Mapping[int, str]) -> None:
    """Raise InputError, naming the differences, unless model and data set agree on ids and names."""
    differences = []
    for key in sorted(model.keys() | dataset.keys()):
        if key not in dataset:
            differences.append(f"id {key} '{model[key]}' only in the model")
        elif key not in model:
            differences.append(f"id {key} '{dataset[key]}' only in the data set")
        elif model[key] != dataset[key]:
            differences.append(f"id {key} is '{model[key]}' in the model, '{dataset[key]}' in the data set")
    if differences:
        shown = "; ".join(differences[:10]) + ("; ..." if len(differences) > 10 else "")
        raise InputError(f"model and data set differ in classes ({shown}): use data with the model's classes")


def evaluate(
    predict_rgb: Callable[[np.ndarray], HasMask],
    names: Mapping[int, str],
    dataset: SegmentationSet,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score `predict_rgb` on a data set, one image at a time.

    Args:
        predict_rgb: (H, W, 3) uint8 RGB -> result with an (H, W) `mask` of class ids.
        names: the model's classes by id.
        limit: evaluate only the first `limit` samples.
        progress: called with (images done, images in all).

    Raises:
        InputError: different classes, an unreadable sample, or a prediction that doesn't fit the truth.
    """
    check_classes(names, dataset.classes)
    samples = dataset.samples[:limit]
    matrix = ConfusionMatrix(dataset.classes, dataset.ignore)
    start = time.perf_counter()
    predicting = []
    for done, sample in enumerate(samples, start=1):
        rgb = sample.rgb()
        true = sample.mask()
        try:
            before = time.perf_counter()
            result = predict_rgb(rgb)
            predicting.append(time.perf_counter() - before)
            matrix.update(true, result.mask)
        except InputError as error:
            raise InputError(f"{sample.name}: {error}") from None
        if progress is not None:
            progress(done, len(samples))
    return Evaluation(
        report=matrix.report(dataset.classes),
        images=len(samples),
        images_per_s=(len(samples) - 1) / sum(predicting[1:]) if len(samples) > 1 else None,
        seconds=time.perf_counter() - start,
    )
