"""Puts layers on a background and keeps account of what of each head stays visible, as exact polygons."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from fasteomt.data.heads import Layer

FINE = 4  # outlines are traced on a grid this many times finer than the pixels
# The traced line runs through the centres of the last fine cells inside, 1/8 pixel within the true edge;
# an alpha ramp of about 1.5 pixels makes this level that much wider than the middle one.
LEVEL = 0.42
SMALLEST = 3.0  # fragments and holes below this many pixels are neither labelled nor cut out
Ring = list[float]


@dataclass
class Visible:
    """What is seen of one head: alpha (h, w) float32 at offset (x, y) in the frame."""

    x: int
    y: int
    alpha: np.ndarray


def compose(background: np.ndarray, layers: list[Layer], shadow: float = 0.0) -> list[Visible]:
    """Draw layers onto `background` ((H, W, 3) float32, in place), later ones in front.

    Args:
        shadow: darkness 0..1 of the soft shadow that each layer throws below and beside itself.

    Returns:
        One entry per head layer, in order: its alpha times what later layers let through.
    """
    heads: list[Visible] = []
    for layer in layers:
        height, width = layer.alpha.shape
        part = background[layer.y : layer.y + height, layer.x : layer.x + width]
        if shadow > 0:
            _shade(background, layer, shadow)
        through = 1 - layer.alpha
        part *= cv2.cvtColor(through, cv2.COLOR_GRAY2RGB)
        part += layer.colour
        for head in heads:
            _hide(head, layer, through)
        if layer.is_head:
            heads.append(Visible(layer.x, layer.y, layer.alpha.copy()))
    return heads


def _shade(background: np.ndarray, layer: Layer, shadow: float) -> None:
    """Contact shadow: the layer's blurred silhouette at a quarter of the size, moved down and right."""
    height, width = layer.alpha.shape
    small = cv2.resize(layer.alpha, (-(-width // 4), -(-height // 4)), interpolation=cv2.INTER_AREA)
    step = max(1, min(small.shape) // 16)
    pad = 4 * step  # the blur has died out there
    moved = cv2.copyMakeBorder(small, pad + step, pad, pad + step, pad, cv2.BORDER_CONSTANT, value=0)
    soft = cv2.GaussianBlur(moved[:-step, :-step], (0, 0), step)
    dark = cv2.resize(soft, None, fx=4, fy=4, interpolation=cv2.INTER_LINEAR)
    x0, y0 = layer.x - 4 * pad, layer.y - 4 * pad
    left, top = max(0, x0), max(0, y0)
    part = background[top : y0 + dark.shape[0], left : x0 + dark.shape[1]]
    dark = dark[top - y0 :, left - x0 :][: part.shape[0], : part.shape[1]]
    part *= cv2.cvtColor(1 - np.float32(shadow) * dark, cv2.COLOR_GRAY2RGB)


def _hide(head: Visible, layer: Layer, through: np.ndarray) -> None:
    x0, y0 = max(head.x, layer.x), max(head.y, layer.y)
    x1 = min(head.x + head.alpha.shape[1], layer.x + through.shape[1])
    y1 = min(head.y + head.alpha.shape[0], layer.y + through.shape[0])
    if x0 < x1 and y0 < y1:
        head.alpha[y0 - head.y : y1 - head.y, x0 - head.x : x1 - head.x] *= through[
            y0 - layer.y : y1 - layer.y, x0 - layer.x : x1 - layer.x
        ]


def rings(visible: Visible) -> list[Ring]:
    """COCO polygons `[x0, y0, x1, y1, ...]` (pixels, corner of the frame at 0) around the visible part.

    A part with holes is cut through each hole, along an edge between pixels, into rings without holes.
    """
    rows, columns = np.nonzero(visible.alpha > LEVEL)
    if not rows.size:
        return []
    top, left = int(rows.min()), int(columns.min())
    alpha = visible.alpha[top : rows.max() + 1, left : columns.max() + 1]
    fine = cv2.resize(np.pad(alpha, 1, mode="edge"), None, fx=FINE, fy=FINE, interpolation=cv2.INTER_LINEAR)
    fine = fine[FINE:-FINE, FINE:-FINE]
    mask = np.pad((fine > LEVEL).astype(np.uint8), 1)
    offset = np.array([visible.x + left, visible.y + top])
    found = (_to_frame(contour, offset) for contour in _outlines(mask))
    # A sliver can shrink to a line, which COCO's rasteriser would take for a box.
    return [ring for ring in found if len(ring) >= 6]


def _to_frame(contour: np.ndarray, offset: np.ndarray) -> Ring:
    points = cv2.approxPolyDP(contour, 1.2, True)[:, 0].astype(np.float64)
    return [round(float(v), 3) for v in ((points - 0.5) / FINE + offset).ravel()]


def _outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Contours of a padded fine mask; pieces with holes are split until none is left."""
    contours, tree = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    least = SMALLEST * FINE * FINE
    result: list[np.ndarray] = []
    for index, contour in enumerate(contours):
        if tree[0][index][3] >= 0 or cv2.contourArea(contour) < least:
            continue
        hole, wide = tree[0][index][2], []
        while hole >= 0:
            if cv2.contourArea(contours[hole]) >= least:
                wide.append(contours[hole])
            hole = tree[0][hole][0]
        if not wide:
            result.append(contour)
            continue
        piece = np.zeros_like(mask)
        cv2.drawContours(piece, [contour], -1, 1, cv2.FILLED)
        cv2.drawContours(piece, wide, -1, 0, cv2.FILLED)
        cv2.drawContours(piece, wide, -1, 1, 1)  # a hole's contour runs on the piece's own cells
        # The longer side of a hole of SMALLEST pixels always has a pixel edge within.
        x, y, width, height = cv2.boundingRect(wide[0])
        axis, low, size = (1, x, width) if width >= height else (0, y, height)
        cut = 1 + FINE * round((low + size / 2 - 1) / FINE)
        for half in (slice(0, cut), slice(cut, None)):
            where = (slice(None), half) if axis else (half, slice(None))
            side = np.zeros_like(piece)
            side[where] = piece[where]
            result += _outlines(side)
    return result
