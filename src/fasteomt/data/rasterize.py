"""Polygons and run lengths to pixels, by the rules of the COCO tools.

A pixel belongs to a polygon by pycocotools' rule: vertices are rounded to fifths of a pixel, the outline is
walked column by column, and a column's crossings are rounded to pixel edges. A square with corners at 0 and
9 covers pixels 0 to 8: 81 of them, not 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fasteomt.errors import need

# Far beyond any image, and small enough that differences of coordinates stay finite.
_FARTHEST = 1e9


@dataclass(frozen=True)
class Shape:
    """One annotation, ready to paint: polygon rings, or runs of a mask."""

    annotation: int
    category: int
    crowd: bool
    rings: tuple[np.ndarray, ...] = ()  # each (n, 2) float64, x and y in pixels
    runs: np.ndarray | None = None  # int64 lengths of runs down the columns, first one outside the object


def clip_ring(ring: np.ndarray, height: int, width: int) -> np.ndarray:
    """Clip a ring to the image grown by its own size on every side (Sutherland-Hodgman).

    What lies inside the image is unchanged. The margin leaves the last step, at the image's own border, to
    the rasteriser, so that a ring which leaves the image a little gets exactly the pixels that
    pycocotools gives it; the clipping is there because the rasteriser walks every pixel of an outline and
    overflows on distant ones.

    Args:
        ring: (n, 2) float64, x and y in pixels, finite.

    Returns:
        (m, 2) float64; m is 0 when nothing is left.
    """
    ring = ring.clip(-_FARTHEST, _FARTHEST)
    for axis, size in ((0, width), (1, height)):
        ring = _clip_half_plane(ring, axis, -float(size), upper=False)
        ring = _clip_half_plane(ring, axis, 2.0 * size, upper=True)
    return ring


def _clip_half_plane(ring: np.ndarray, axis: int, limit: float, upper: bool) -> np.ndarray:
    along = ring[:, axis]
    inside = along <= limit if upper else along >= limit
    if inside.all() or not inside.any():
        return ring if inside.all() else ring[:0]
    end, end_inside = np.roll(ring, -1, axis=0), np.roll(inside, -1)
    crosses = inside != end_inside
    # Per edge: first the crossing, then the end point; each only where it exists.
    points = np.stack([end, end], axis=1)
    share = (limit - along[crosses]) / (end[crosses, axis] - along[crosses])
    points[crosses, 0] = ring[crosses] + share[:, None] * (end[crosses] - ring[crosses])
    points[crosses, 0, axis] = limit
    return points[np.stack([crosses, end_inside], axis=1)]


def decode_runs(counts: str | list[int], height: int, width: int) -> np.ndarray | None:
    """Run lengths of a COCO mask, from its compressed string or its plain list.

    The string holds, six bits a character from '0' on, numbers of five bits a digit (sixth bit: more follow),
    low digit first, signed; from the third run on, each is the difference to the run two before.
    pycocotools returns uninitialised memory for runs that end early, so they are read and checked here.

    Returns:
        (n,) int64, or None unless the runs are whole, not negative and fill height x width exactly.
    """
    if isinstance(counts, list):
        if not all(isinstance(run, int) for run in counts):
            return None
        runs = counts
    else:
        runs = []
        value = shift = 0
        for character in counts:
            digit = ord(character) - 48
            # No image has a run of 60 bits, and endless digits would take endless time.
            if not 0 <= digit < 64 or shift > 60:
                return None
            value |= (digit & 0x1F) << shift
            shift += 5
            if not digit & 0x20:
                if digit & 0x10:
                    value -= 1 << shift
                runs.append(value + runs[-2] if len(runs) > 2 else value)
                value = shift = 0
        if shift:
            return None
    if sum(runs) != height * width or any(run < 0 for run in runs):
        return None
    return np.array(runs, dtype=np.int64)


def decode_shape(shape: Shape, height: int, width: int) -> np.ndarray:
    """Rasterise one shape; the rings of an annotation are united.

    Returns:
        (H, W) bool.
    """
    if shape.runs is not None:
        return np.repeat(np.arange(len(shape.runs)) % 2 == 1, shape.runs).reshape(width, height).T
    coco = need("pycocotools.mask", extra="data")
    outlines = coco.frPyObjects([ring.ravel().tolist() for ring in shape.rings], height, width)
    return coco.decode(coco.merge(outlines)).astype(bool)


def paint(
    shapes: Sequence[Shape], height: int, width: int, background: int, ignore: int | None, dtype: np.dtype
) -> np.ndarray:
    """Paint the shapes of one image into a class-id mask.

    Crowd regions come first and become `ignore`. Over them the others are painted, larger ones first, so that
    a small object is never hidden by a big one. Equal sizes: the higher annotation id is on top, then
    the higher category id. Hence the order in the file doesn't matter.

    Returns:
        (H, W) of `dtype`.
    """
    mask: np.ndarray = np.full((height, width), background, dtype=dtype)
    layers = []
    for shape in shapes:
        covered = decode_shape(shape, height, width)
        if shape.crowd:
            mask[covered] = ignore
        else:
            layers.append((-int(np.count_nonzero(covered)), shape.annotation, shape.category, covered))
    for _, _, category, covered in sorted(layers, key=lambda layer: layer[:3]):
        mask[covered] = category
    return mask
