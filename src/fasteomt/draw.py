"""Masks in colour: tints, outlines and a legend over an image."""

from __future__ import annotations

import colorsys
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

TINT = 0.45
# Below this height the legend would hide the picture.
_LEGEND_MIN_HEIGHT = 160
_LEGEND_ROWS = 12


@lru_cache(maxsize=8)
def palette(count: int) -> np.ndarray:
    """(count, 3) uint8 RGB colours; entry 0 is black, the rest are far apart in hue, and stay the same
    however many follow."""
    colours = np.zeros((count, 3), np.uint8)
    for index in range(1, count):
        # Steps of the golden ratio keep any first n hues well spread.
        hue = (0.95 + (index - 1) * 0.618034) % 1.0
        value = (1.0, 0.8, 0.62)[(index // 7) % 3]
        colours[index] = [round(255 * channel) for channel in colorsys.hsv_to_rgb(hue, 0.85, value)]
    return colours


def class_index(mask: np.ndarray, class_ids: Sequence[int]) -> np.ndarray:
    """(H, W) class ids -> (H, W) positions in `class_ids`, uint8 or uint16; unknown ids become 0."""
    dtype = np.uint8 if len(class_ids) <= 256 else np.uint16
    if mask.dtype in (np.uint8, np.uint16):
        table = np.zeros(np.iinfo(mask.dtype).max + 1, dtype)
        for position, class_id in enumerate(class_ids):
            if 0 <= class_id < len(table):
                table[class_id] = position
        return table[mask]
    order = np.argsort(class_ids)
    ids = np.asarray(class_ids, dtype=np.int64)[order]
    found = np.searchsorted(ids, mask).clip(max=len(ids) - 1)
    return np.where(ids[found] == mask, order[found], 0).astype(dtype)


def mask_colours(mask: np.ndarray, class_ids: Sequence[int]) -> np.ndarray:
    """(H, W) class ids -> (H, W, 3) uint8 RGB; the first class is black."""
    return _colours(class_index(mask, class_ids), len(class_ids))


def _colours(index: np.ndarray, count: int) -> np.ndarray:
    if index.dtype != np.uint8:
        return palette(count)[index]
    # Some ten times faster than indexing, and this is done for every frame.
    table = np.zeros((256, 1, 3), np.uint8)
    table[:count, 0] = palette(count)
    return cv2.LUT(cv2.merge([index, index, index]), table)


def draw_overlay(
    image: np.ndarray, mask: np.ndarray, class_ids: Sequence[int], names: Mapping[int, str] | None = None
) -> np.ndarray:
    """Tint each class but the first, outline its regions and, with `names`, add a legend.

    Args:
        image: (H, W, 3) uint8 RGB; not changed.
        mask: (H, W) class ids.
        class_ids: all classes of the model; the first stays clear.
        names: id -> name; without it there is no legend. Frames lower than 160 pixels have none.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    index = class_index(mask, class_ids)
    colours = _colours(index, len(class_ids))
    shown = (index > 0).astype(np.uint8)
    blended = cv2.addWeighted(image, 1 - TINT, colours, TINT, 0)
    drawn = image.copy()
    cv2.copyTo(blended, shown, drawn)
    cv2.copyTo(colours, _outline(index) & shown, drawn)
    if names is not None and image.shape[0] >= _LEGEND_MIN_HEIGHT:
        present = tuple(
            int(position) for position in np.flatnonzero(np.bincount(index.ravel())) if position > 0
        )[:_LEGEND_ROWS]
        if present:
            labels = tuple(_printable(names, class_ids[position]) for position in present)
            _paste(drawn, _legend(labels, present, len(class_ids), max(11, image.shape[0] // 45)))
    return drawn


def _printable(names: Mapping[int, str], class_id: int) -> str:
    """The name in ASCII, all that Pillow's own font has: accents go, and a name in another script becomes
    its class id."""
    name = names.get(class_id, "")
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().strip()
    return plain or f"class {class_id}"


def _outline(index: np.ndarray) -> np.ndarray:
    """(H, W) uint8, 1 on pixels whose class differs from a neighbour's, wider on large images."""
    edge = np.zeros(index.shape, np.uint8)
    across = index[:, 1:] != index[:, :-1]
    down = index[1:] != index[:-1]
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= down
    edge[:-1] |= down
    width = max(1, min(index.shape) // 300)
    return cv2.dilate(edge, np.ones((width, width), np.uint8)) if width > 1 else edge


@lru_cache(maxsize=64)
def _legend(labels: tuple[str, ...], positions: tuple[int, ...], count: int, size: int) -> np.ndarray:
    """(h, w, 3) uint8 RGB box with a coloured square and a name in each row."""
    font = ImageFont.load_default(size)
    row, margin = round(size * 1.5), size // 2
    widest = max(font.getlength(label) for label in labels)
    box = Image.new("RGB", (round(widest) + row + 3 * margin, row * len(labels) + 2 * margin), (24, 24, 24))
    pen = ImageDraw.Draw(box)
    for place, (label, position) in enumerate(zip(labels, positions, strict=True)):
        top = margin + place * row
        colour = tuple(int(channel) for channel in palette(count)[position])
        pen.rectangle((margin, top + row // 6, margin + size, top + row // 6 + size), fill=colour)
        pen.text((margin + row, top + row // 8), label, fill=(255, 255, 255), font=font)
    return np.asarray(box)


def _paste(image: np.ndarray, box: np.ndarray) -> None:
    """Lay the box into the upper left corner, as far as it fits."""
    height, width = min(box.shape[0], image.shape[0]), min(box.shape[1], image.shape[1])
    corner = image[:height, :width]
    cv2.addWeighted(corner, 0.25, box[:height, :width], 0.75, 0, dst=corner)
