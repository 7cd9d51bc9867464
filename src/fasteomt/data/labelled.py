"""Images in memory with their masks, as training takes them. Free of torch: worker processes import this."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fasteomt.data.dataset import Sample

POINTS = 32  # window centres kept of each image


class Labelled(NamedTuple):
    """rgb (H, W, 3) uint8; mask (H, W) uint8 class ids; points (POINTS, 2) pixels y, x."""

    rgb: np.ndarray
    mask: np.ndarray
    points: np.ndarray


def labelled(rgb: np.ndarray, mask: np.ndarray) -> Labelled:
    """With points on each class that the mask shows, as many on each."""
    rng = np.random.default_rng(mask.size)
    present = [np.flatnonzero(mask == i) for i in np.unique(mask)]
    flat = np.array([rng.choice(present[k % len(present)]) for k in range(POINTS)])
    return Labelled(rgb, mask, np.stack(np.unravel_index(flat, mask.shape), axis=1))


def read_labelled(sample: Sample) -> Labelled:
    """A sample of a data set from its files."""
    return labelled(sample.rgb(), sample.mask())
