"""A picture of the frames where two masks differ most."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fasteomt.files import atomic_path
from fasteomt.metrics import ConfusionMatrix
from fasteomt.video.source import Frame

SHOWN = 4
_PANEL_WIDTH = 480  # pixels
_CAPTION = 26
_HEADINGS = ("frame", "fp32 reference", "stack", "pixels that differ")
_REFERENCE, _STACK, _DIFFERENT = (60, 220, 90), (255, 90, 220), (255, 60, 40)


@dataclass(frozen=True)
class _Shown:
    frame: Frame
    reference: np.ndarray
    mask: np.ndarray
    differing: int


class WorstFrames:
    """Keeps the frames with the most differing pixels, at most `SHOWN`.

    Args:
        names: the model's classes by id.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._heap: list[tuple[int, int, _Shown]] = []

    def update(self, frame: Frame, reference: np.ndarray, mask: np.ndarray) -> None:
        """Add a frame with the reference's and the stack's (H, W) class ids."""
        differing = int(np.count_nonzero(reference != mask))
        # Of equal counts the earlier frame stays.
        item = (differing, -frame.index, _Shown(frame, reference, mask, differing))
        if len(self._heap) < SHOWN:
            heapq.heappush(self._heap, item)
        elif item[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, item)

    def draw(self) -> Image.Image:
        """A row for each frame kept, in order of time: the frame, both outlines, and the differing pixels."""
        shown = sorted((item[2] for item in self._heap), key=lambda one: one.frame.index)
        rows = [self._row(one) for one in shown]
        picture = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)))
        top = 0
        for row in rows:
            picture.paste(row, (0, top))
            top += row.height
        return picture

    def write(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the picture as PNG.

        Raises:
            InputError: `path` exists (without `overwrite`) or can't be written.
        """
        with atomic_path(path, overwrite=overwrite) as temporary:
            self.draw().save(temporary, format="PNG")

    def caption(self, one: _Shown) -> str:
        """Which frame, the worst class's IoU, and how many pixels differ."""
        matrix = ConfusionMatrix(self._names)
        matrix.update(one.reference, one.mask)
        present = {key: value for key, value in matrix.iou().items() if not math.isnan(value)}
        worst = min(present, key=lambda key: present[key])
        time = "" if one.frame.pts is None else f", {one.frame.pts:.2f} s"
        name = self._names[worst].encode("ascii", "replace").decode()  # all that Pillow's own font has
        return (
            f"frame {one.frame.index}{time}   IoU {present[worst]:.4f} (class {worst}, {name})   "
            f"{one.differing:,} of {one.mask.size:,} pixels differ"
        )

    def _row(self, one: _Shown) -> Image.Image:
        height, width = one.mask.shape
        size = (_PANEL_WIDTH, max(1, round(height * _PANEL_WIDTH / width)))
        rgb = cv2.resize(one.frame.rgb, size, interpolation=cv2.INTER_AREA)
        panels = [
            rgb,
            _outlined(rgb, _edges(one.reference), _REFERENCE),
            _outlined(rgb, _edges(one.mask), _STACK),
            _outlined(rgb // 4, (one.reference != one.mask).astype(np.uint8), _DIFFERENT),
        ]
        row = Image.new("RGB", (size[0] * len(panels), size[1] + 2 * _CAPTION), (24, 24, 24))
        pen, font = ImageDraw.Draw(row), ImageFont.load_default(15)
        pen.text((8, 4), self.caption(one), fill=(255, 255, 255), font=font)
        for place, (panel, heading) in enumerate(zip(panels, _HEADINGS, strict=True)):
            pen.text((place * size[0] + 8, _CAPTION + 4), heading, fill=(190, 190, 190), font=font)
            row.paste(Image.fromarray(panel), (place * size[0], 2 * _CAPTION))
        return row


def _edges(mask: np.ndarray) -> np.ndarray:
    """(H, W) uint8, 1 on pixels whose class differs from the right or lower neighbour's."""
    edge = np.zeros(mask.shape, np.uint8)
    edge[:, :-1] |= mask[:, 1:] != mask[:, :-1]
    edge[:-1] |= mask[1:] != mask[:-1]
    return edge


def _outlined(rgb: np.ndarray, marked: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """The image with the marked pixels of a mask of any size in colour; a single one still shows."""
    height, width = rgb.shape[:2]
    if width >= marked.shape[1]:
        shown = cv2.resize(marked, (width, height), interpolation=cv2.INTER_NEAREST)
    else:
        # Resizing would drop single pixels.
        rows, columns = np.nonzero(marked)
        shown = np.zeros((height, width), np.uint8)
        shown[rows * height // marked.shape[0], columns * width // marked.shape[1]] = 1
        shown = cv2.dilate(shown, np.ones((2, 2), np.uint8))
    out = rgb.copy()
    out[shown > 0] = colour
    return out
