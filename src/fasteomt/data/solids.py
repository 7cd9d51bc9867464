"""Ellipsoids drawn in orthographic view: closed-form depth and normals per pixel.

A thing (head, body, bottle, hand) is a list of ellipsoids in its own frame: x to the viewer's right, y down,
z towards the viewer, in units of one head height. A ray along z meets the ellipsoid (p-c)^T Q (p-c) = 1,
Q = B diag(1/r^2) B^T, at the larger root of a quadratic in z; its normal there is Q (p-c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Keep = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
FAR = np.float32(-1e3)


@dataclass(frozen=True)
class Solid:
    """One ellipsoid: centre and radii (3 numbers each), its rotation, and the group whose paint it wears.

    Solids of one group melt into each other. `keep` takes the thing's x, y, z of visible points and says
    which of them exist: how hairlines and hat edges are cut.
    """

    group: str
    centre: tuple[float, float, float]
    radii: tuple[float, float, float]
    turn: np.ndarray | None = None
    keep: Keep | None = None


@dataclass(frozen=True)
class View:
    """Where a thing stands in the image: `origin` (x, y) and `scale` in pixels, `rotation` (3, 3)."""

    origin: tuple[float, float]
    scale: float
    rotation: np.ndarray


@dataclass
class Patch:
    """Visible points of one group: pixel rows and columns, local xyz (N, 3), unit normals in view (N, 3)."""

    group: str
    rows: np.ndarray
    columns: np.ndarray
    local: np.ndarray
    normal: np.ndarray


@dataclass
class _Group:
    """Depth (H, W) and normals (3, H, W), float32, of the foremost points of one group."""

    z: np.ndarray
    normal: np.ndarray


def rotation(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> np.ndarray:
    """(3, 3) matrix: first yaw (about y), then pitch (about x), then roll (in the image). Radians."""
    cy, sy, cp, sp, cr, sr = (f(a) for a in (yaw, pitch, roll) for f in (np.cos, np.sin))
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
    return about_z @ about_x @ about_y


def extent(solids: Sequence[Solid], view: View) -> tuple[float, float, float, float]:
    """Bounding box x0, y0, x1, y1 in pixels of the projected solids."""
    boxes = []
    for solid in solids:
        centre, _, reach = _project(solid, view)
        boxes.append((centre[0] - reach[0], centre[1] - reach[1], centre[0] + reach[0], centre[1] + reach[1]))
    box = np.array(boxes) * view.scale
    x, y = view.origin
    return x + box[:, 0].min(), y + box[:, 1].min(), x + box[:, 2].max(), y + box[:, 3].max()


def _project(solid: Solid, view: View) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre in view (3,), basis in view (3, 3), half extents (x, y), all in units."""
    basis = view.rotation if solid.turn is None else view.rotation @ solid.turn
    spread = basis * np.square(solid.radii) @ basis.T
    return view.rotation @ np.array(solid.centre), basis, np.sqrt(np.diag(spread)[:2])


def render(solids: Sequence[Solid], view: View, width: int, height: int, melt: float = 0.025) -> list[Patch]:
    """Visible points of every group in a window of width x height pixels; pixel centres at +0.5.

    Args:
        melt: length over which solids of one group blend (a smooth maximum of depth), in units.
    """
    groups: dict[str, _Group] = {}
    turn = view.rotation.astype(np.float32)
    for solid in solids:
        centre, basis, reach = _project(solid, view)
        ox, oy = view.origin[0] + centre[0] * view.scale, view.origin[1] + centre[1] * view.scale
        x0, x1 = max(0, int(ox - reach[0] * view.scale)), min(width, int(ox + reach[0] * view.scale) + 2)
        y0, y1 = max(0, int(oy - reach[1] * view.scale)), min(height, int(oy + reach[1] * view.scale) + 2)
        if x0 >= x1 or y0 >= y1:
            continue
        q = ((basis / np.square(solid.radii)) @ basis.T).astype(np.float32)
        x = ((np.arange(x0, x1) + 0.5 - ox) / view.scale).astype(np.float32)[None, :]
        y = ((np.arange(y0, y1) + 0.5 - oy) / view.scale).astype(np.float32)[:, None]
        b = q[0, 2] * x + q[1, 2] * y
        root = b * b - q[2, 2] * (q[0, 0] * x * x + q[1, 1] * y * y - 1 + 2 * q[0, 1] * x * y)
        missing = root <= 0
        z = (np.sqrt(np.maximum(root, 0)) - b) / q[2, 2]
        normal = [q[i, 0] * x + q[i, 1] * y + q[i, 2] * z for i in range(3)]
        length = 1 / np.sqrt(normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2])
        cx, cy, cz = centre.astype(np.float32)
        z += cz
        if solid.keep is not None:
            rows, columns = np.nonzero(~missing)
            points = np.stack([x[0, columns] + cx, y[rows, 0] + cy, z[rows, columns]], axis=1) @ turn
            missing[rows, columns] = ~solid.keep(points[:, 0], points[:, 1], points[:, 2])
        z[missing] = FAR
        if solid.group not in groups:
            groups[solid.group] = _Group(
                np.full((height, width), FAR), np.zeros((3, height, width), np.float32)
            )
        group, window = groups[solid.group], (slice(y0, y1), slice(x0, x1))
        old = group.z[window]
        share, depth = _soft_maximum(old, z, melt)
        group.z[window] = depth
        for channel, part in zip(group.normal, normal, strict=True):
            channel[window] += share * (part * length - channel[window])
    return _visible(groups, view)


def _soft_maximum(old: np.ndarray, new: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """The new one's share 0..1 in a smooth maximum of two depths, and that maximum."""
    gap = np.clip((new - old) / np.float32(width), -30, 30)
    falloff = np.exp(-np.abs(gap))
    share = np.where(gap > 0, 1, falloff) / (1 + falloff)
    return share, np.maximum(old, new) + np.float32(width) * np.log1p(falloff)


def _visible(groups: dict[str, _Group], view: View) -> list[Patch]:
    if not groups:
        return []
    front = np.maximum.reduce([group.z for group in groups.values()])
    front[front < FAR / 2] = np.inf
    patches = []
    for name, group in groups.items():
        rows, columns = np.nonzero(group.z >= front)
        if not rows.size:
            continue
        normal = group.normal[:, rows, columns].T
        normal /= np.linalg.norm(normal, axis=1, keepdims=True) + 1e-6
        x = (columns + 0.5 - view.origin[0]) / view.scale
        y = (rows + 0.5 - view.origin[1]) / view.scale
        points = np.stack([x, y, group.z[rows, columns]], axis=1).astype(np.float32)
        patches.append(Patch(name, rows, columns, points @ view.rotation.astype(np.float32), normal))
    return patches
