"""Background photos that scikit-image and scikit-learn ship, split between training and validation.

Files are read straight from the installed packages; nothing is downloaded. A photo belongs to exactly one
split, so that no background of a validation image was ever trained on. Two photos show people and are
cropped to a part without any head (`camera`, `astronaut`); `coins` is left out because it shows portraits.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from PIL import Image

from fasteomt.errors import InputError, UnsupportedError

Split = Literal["train", "valid"]
Crop = tuple[float, float, float, float]

WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)
# name -> (package, path inside it, part to use as fractions x0, y0, x1, y1)
FILES: dict[str, tuple[str, str, Crop]] = {
    "astronaut": ("skimage", "data/astronaut.png", (0.63, 0.0, 1.0, 1.0)),
    "brick": ("skimage", "data/brick.png", WHOLE),
    "camera": ("skimage", "data/camera.png", (0.58, 0.0, 1.0, 1.0)),
    "cell": ("skimage", "data/cell.png", WHOLE),
    "chelsea": ("skimage", "data/chelsea.png", WHOLE),
    "china": ("sklearn", "datasets/images/china.jpg", WHOLE),
    "clock": ("skimage", "data/clock_motion.png", WHOLE),
    "coffee": ("skimage", "data/coffee.png", WHOLE),
    "flower": ("sklearn", "datasets/images/flower.jpg", WHOLE),
    "grass": ("skimage", "data/grass.png", WHOLE),
    "gravel": ("skimage", "data/gravel.png", WHOLE),
    "hubble": ("skimage", "data/hubble_deep_field.jpg", WHOLE),
    "ihc": ("skimage", "data/ihc.png", WHOLE),
    "moon": ("skimage", "data/moon.png", WHOLE),
    "motorcycle": ("skimage", "data/motorcycle_left.png", WHOLE),
    "page": ("skimage", "data/page.png", WHOLE),
    "retina": ("skimage", "data/retina.jpg", (0.12, 0.12, 0.88, 0.88)),
    "rocket": ("skimage", "data/rocket.jpg", WHOLE),
    "text": ("skimage", "data/text.png", WHOLE),
}
# How often each photo is drawn: scenes more often than plain textures.
SPLITS: dict[Split, dict[str, float]] = {
    "train": {
        "astronaut": 2, "camera": 2, "cell": 0.5, "chelsea": 3, "clock": 0.5, "flower": 3, "grass": 1,
        "gravel": 1, "hubble": 0.7, "ihc": 1, "moon": 0.7, "motorcycle": 6, "page": 0.7, "retina": 0.7,
        "rocket": 3,
    },
    "valid": {"brick": 1, "china": 5, "coffee": 4, "text": 1},
}  # fmt: skip


def photo_names(split: Split) -> list[str]:
    """Names of the photos of one split, sorted. Raises InputError for an unknown split."""
    if split not in SPLITS:
        raise InputError(f"unknown split '{split}': use one of {', '.join(SPLITS)}")
    return sorted(SPLITS[split])


@functools.cache
def load_photo(name: str) -> np.ndarray:
    """One photo, cropped to its head-free part: (H, W, 3) uint8 RGB, read-only.

    Raises:
        UnsupportedError: the package that ships the photo is absent or lacks the file.
    """
    package, inner, (x0, y0, x1, y1) = FILES[name]
    spec = importlib.util.find_spec(package)  # the package itself isn't needed, and sklearn is slow to import
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(f"package '{package}' is not installed: run pip install 'fasteomt[data]'")
    path = Path(spec.submodule_search_locations[0]) / inner
    try:
        with Image.open(path) as picture:
            rgb = np.asarray(picture.convert("RGB"))
    except OSError:
        raise UnsupportedError(
            f"{path}: photo missing: reinstall with pip install 'fasteomt[data]'"
        ) from None
    height, width = rgb.shape[:2]
    part = rgb[round(y0 * height) : round(y1 * height), round(x0 * width) : round(x1 * width)]
    part = np.ascontiguousarray(part)
    part.setflags(write=False)
    return part


def pick_photo(rng: np.random.Generator, split: Split) -> np.ndarray:
    """A random photo of the split, weighted by `SPLITS`."""
    names = photo_names(split)
    weights = np.array([SPLITS[split][name] for name in names])
    return load_photo(names[int(rng.choice(len(names), p=weights / weights.sum()))])


def random_view(
    rng: np.random.Generator, photo: np.ndarray, width: int, height: int, min_share: float = 0.35
) -> np.ndarray:
    """A random crop of the photo's aspect-fitted frame, flipped and recoloured at random.

    Args:
        min_share: smallest crop side as a share of the largest crop that fits.

    Returns:
        (height, width, 3) uint8 RGB.
    """
    rows, columns = photo.shape[:2]
    fit = min(columns / width, rows / height) * rng.uniform(min_share, 1.0)
    crop_w, crop_h = max(2, int(width * fit)), max(2, int(height * fit))
    x0 = int(rng.integers(0, columns - crop_w + 1))
    y0 = int(rng.integers(0, rows - crop_h + 1))
    crop = photo[y0 : y0 + crop_h, x0 : x0 + crop_w]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    if rng.random() < 0.1:
        crop = crop[::-1]
    method = cv2.INTER_AREA if fit > 1.0 else cv2.INTER_CUBIC
    view = cv2.resize(np.ascontiguousarray(crop), (width, height), interpolation=method)
    return recolour(rng, view)


def recolour(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Random hue, saturation, exposure and gamma: (H, W, 3) uint8 RGB in and out."""
    steps = np.arange(256)
    curves = np.stack([steps, steps, steps], axis=1)  # one per HSV channel; hue runs from 0 to 179
    if rng.random() < 0.5:
        curves[:, 0] = (steps + int(rng.normal(0, 18))) % 180
    curves[:, 1] = np.clip(steps * rng.uniform(0.4, 1.35), 0, 255)
    if rng.random() < 0.15:  # tints grey textures: coloured walls, lawns, skin-like floors
        curves[:, 0] = int(rng.integers(0, 180))
        curves[:, 1] = np.maximum(curves[:, 1], int(rng.integers(10, 70)))
    gain, gamma = rng.uniform(0.7, 1.15), np.exp(rng.normal(0, 0.2))
    curves[:, 2] = np.clip(255 * gain * (steps / 255.0) ** gamma, 0, 255)
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    return cv2.cvtColor(cv2.LUT(hsv, curves[None].astype(np.uint8)), cv2.COLOR_HSV2RGB)
