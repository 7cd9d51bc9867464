"""Small masks, results, models and clips that the gates' tests share."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image

from fasteomt.checkpoint import Checkpoint, random_checkpoint
from fasteomt.gates.verdict import Subject
from fasteomt.model.spec import ModelSpec
from fasteomt.provenance import source_digest
from fasteomt.result import Result

NAMES = {0: "background", 7: "head"}
SEED = 4  # of the small model's weights: both classes have thousands of pixels in every frame


def square_mask(side: int, at: int = 10, size: int = 64) -> np.ndarray:
    """(size, size) uint8: class 7 in a square, class 0 elsewhere."""
    mask = np.zeros((size, size), np.uint8)
    mask[at : at + side, at : at + side] = 7
    return mask


def result(mask: np.ndarray, head: float = 0.9, background: float = 0.99) -> Result:
    """A prediction with the given confidences, of the classes that occur."""
    areas = {class_id: int(np.count_nonzero(mask == class_id)) for class_id in NAMES}
    confidence = {0: background, 7: head}
    return Result(mask, NAMES, areas, {key: confidence[key] for key, area in areas.items() if area})


def subject(**changes: str | None) -> Subject:
    fields = {
        "model": "tiny",
        "stack": "bf16",
        "plan": "0123456789ab",
        "checkpoint": "c" * 64,
        "clip": "d" * 64,
        "truth": None,
        "gpu": "NVIDIA H200",
        "torch": torch.__version__,
        "source": source_digest(),
    }
    return Subject(**(fields | changes))


def clip_model(spec: ModelSpec) -> Checkpoint:
    return random_checkpoint(spec, SEED)


def write_images(folder: Path, count: int = 8, width: int = 96, height: int = 64) -> Path:
    """A folder of smooth random pictures, all different."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index in range(count):
        coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)).save(
            folder / f"{index:03}.png"
        )
    return folder
