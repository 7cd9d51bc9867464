"""Draws things that are not heads, with the same ellipsoids, light and compositing as the heads.

Round, skin-coloured, hairy or face-sized: each kind shares something with a head, so that neither a sharp
edge nor a colour gives heads away.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from fasteomt.data.head_shapes import any_colour, pick, skin_colour
from fasteomt.data.heads import Layer, Light, blend, draw, inside, lit, noise
from fasteomt.data.solids import Patch, Solid, View, rotation

KINDS = {
    "ball": 1.2, "balloon": 1.0, "plate": 0.7, "melon": 0.8, "blob": 1.2, "hand": 1.4, "clock": 0.7,
    "bottle": 0.9, "patch": 1.6, "box": 0.9, "plush": 0.6, "pole": 0.8,
}  # fmt: skip


@dataclass(frozen=True)
class Thing:
    """A distractor's kind, colours and orientation; `photo` is a view that "patch" and "box" cut from."""

    kind: str
    colour: np.ndarray
    second: np.ndarray
    rotation: np.ndarray
    gloss: float
    seed: int


def sample_thing(rng: np.random.Generator) -> Thing:
    """A random distractor."""
    kind = pick(rng, KINDS)
    skin_like = kind in ("blob", "hand") or (
        kind in ("ball", "balloon", "plate", "box") and rng.random() < 0.3
    )
    colour = skin_colour(rng) if skin_like else any_colour(rng)
    tilt = 0.25 if kind in ("bottle", "balloon", "pole") else 1.0
    turn = rotation(rng.normal(0, 0.7), rng.normal(0, 0.5) * tilt, rng.normal(0, 0.8) * tilt)
    return Thing(kind, colour, any_colour(rng), turn, rng.uniform(0.02, 0.6), int(rng.integers(1 << 30)))


def draw_thing(
    thing: Thing, x: float, y: float, size: float, light: Light, frame: tuple[int, int], photo: np.ndarray
) -> Layer | None:
    """One distractor centred at (x, y), about `size` pixels tall; None when outside `frame` (width, height).

    Args:
        photo: (H, W, 3) uint8 RGB view of the same split's photos, from which patches are cut.
    """
    if thing.kind in ("patch", "box"):
        return _flat(thing, x, y, size, light, frame, photo)
    view = View((x, y), size, thing.rotation)
    return draw(
        _solids(thing), view, frame, lambda patch, _: _paint(thing, patch, light), max(160.0, 0.5 * size)
    )


def _solids(thing: Thing) -> list[Solid]:
    rng = np.random.default_rng(thing.seed)
    kind = thing.kind
    if kind == "ball":
        return [Solid("main", (0, 0, 0), (0.5, 0.5, 0.5))]
    if kind == "balloon":
        return [Solid("main", (0, 0, 0), (0.42, 0.5, 0.42)), Solid("main", (0, 0.52, 0), (0.05, 0.05, 0.05)),
                Solid("second", (0, 1.3, 0), (0.012, 0.8, 0.012))]  # fmt: skip
    if kind == "plate":
        return [Solid("main", (0, 0, 0), (0.5, 0.5, 0.06)), Solid("main", (0, 0, 0.05), (0.33, 0.33, 0.03))]
    if kind == "clock":
        return [Solid("second", (0, 0, 0), (0.5, 0.5, 0.1)), Solid("main", (0, 0, 0.06), (0.44, 0.44, 0.06))]
    if kind == "melon":
        return [Solid("main", (0, 0, 0), (0.42, rng.uniform(0.42, 0.6), 0.42))]
    if kind == "bottle":
        return [Solid("main", (0, 0.1, 0), (0.17, 0.45, 0.17)),
                Solid("main", (0, 0.25, 0), (0.18, 0.28, 0.18)),
                Solid("main", (0, -0.3, 0), (0.06, 0.25, 0.06)),
                Solid("second", (0, -0.5, 0), (0.07, 0.06, 0.07))]  # fmt: skip
    if kind == "pole":
        return [Solid("main", (0, 0, 0), (0.07, 3.0, 0.07))]
    if kind == "hand":
        fingers = [Solid("main", (0, 0.15, 0), (0.24, 0.27, 0.1)),
                   Solid("main", (0, 0.75, 0), (0.15, 0.55, 0.13)),
                   Solid("main", (0.27, 0.0, 0.05), (0.06, 0.22, 0.06), rotation(roll=0.7))]  # fmt: skip
        for index in range(4):
            x = -0.18 + 0.12 * index
            reach = (0.2, 0.25, 0.26, 0.22)[index] * rng.uniform(0.6, 1.1)
            turn = rotation(roll=(index - 1.5) * 0.12)
            fingers.append(Solid("main", (x, -0.1 - reach * 0.8, 0), (0.055, reach, 0.06), turn))
        return fingers
    # blob and plush: a cluster of random ellipsoids
    parts = [Solid("main", (0, 0, 0), tuple(rng.uniform(0.25, 0.45, 3)))]
    for _ in range(int(rng.integers(1, 5))):
        turn = rotation(*rng.uniform(-1, 1, 3))
        centre, radii = rng.uniform(-0.3, 0.3, 3), rng.uniform(0.12, 0.3, 3)
        parts.append(Solid("main", tuple(centre), tuple(radii), turn))
    return parts


def _paint(thing: Thing, patch: Patch, light: Light) -> np.ndarray:
    x, y, z = patch.local.T
    albedo = np.repeat((thing.colour if patch.group == "main" else thing.second)[None], len(x), axis=0)
    around = np.arctan2(x, z)
    if thing.kind == "ball" and thing.seed % 3:
        panels = np.sin(around * (2 + thing.seed % 4)) * np.sin(y * (6 + thing.seed % 5)) > 0.15
        blend(albedo, thing.second, panels.astype(np.float32))
    elif thing.kind == "melon":
        blend(albedo, thing.second, np.clip(np.sin(around * 10 + 2 * noise(y * 40, x * 9)), 0, 1))
    elif thing.kind == "plate":
        blend(albedo, thing.second, inside(np.abs(np.hypot(x, y) - 0.42) - 0.02, 0.02))
    elif thing.kind == "bottle":
        blend(albedo, thing.second, inside(np.abs(y - 0.2) - 0.12, 0.02))
    elif thing.kind == "clock" and patch.group == "main":
        _dial(thing, albedo, x, y)
    elif thing.kind == "plush":
        albedo *= 1 + 0.35 * noise(x * 130 + thing.seed, y * 130 + z * 90)[:, None]
    albedo *= 1 + 0.05 * noise(x * 70 + thing.seed, y * 70 + z * 30)[:, None]
    return lit(
        albedo, patch.normal, light, 0.02 if thing.kind == "plush" else thing.gloss, 8 + thing.seed % 40
    )


def _dial(thing: Thing, albedo: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    albedo += np.float32(0.6) * (1 - albedo)
    radius, around = np.hypot(x, y), np.arctan2(x, -y)
    ticks = (np.abs(np.sin(around * 6)) < 0.12) & (radius > 0.33) & (radius < 0.4)
    ink = ticks.astype(np.float32)
    for length, angle in ((0.2, thing.seed % 360), (0.3, thing.seed // 360 % 360)):
        dx, dy = np.sin(np.radians(angle)), -np.cos(np.radians(angle))
        along, across = x * dx + y * dy, np.abs(x * dy - y * dx)
        ink = np.maximum(
            ink, inside(np.maximum(across - 0.015, np.abs(along - length / 2) - length / 2), 0.015)
        )
    blend(albedo, np.full(3, 0.08, np.float32), ink)


def _flat(
    thing: Thing, x: float, y: float, size: float, light: Light, frame: tuple[int, int], photo: np.ndarray
) -> Layer | None:
    """A shaded flat shape: a cut-out of the photo with a wavy outline ("patch") or a panel ("box")."""
    rng = np.random.default_rng(thing.seed)
    if thing.kind == "box":
        corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]]) * [rng.uniform(0.4, 1.4), 1]
        outline = corners @ thing.rotation[:2, :2].T
    else:
        turn = np.linspace(0, 2 * np.pi, 64, endpoint=False)
        radius = 0.42 + sum(
            rng.normal(0, 0.07 / k) * np.cos(k * turn + rng.uniform(0, 6)) for k in (2, 3, 4, 5)
        )
        outline = np.stack([np.sin(turn) * radius * rng.uniform(0.7, 1.0), np.cos(turn) * radius], axis=1)
    outline = outline * size + [x, y]
    x0, y0 = np.maximum(np.floor(outline.min(axis=0)).astype(int) - 2, 0)
    x1, y1 = np.minimum(np.ceil(outline.max(axis=0)).astype(int) + 2, frame)
    if x0 >= x1 or y0 >= y1:
        return None
    cover = np.zeros((y1 - y0, x1 - x0), np.uint8)
    fixed = np.round((outline - [x0, y0] - 0.5) * 16).astype(np.int32)
    cv2.fillPoly(cover, [fixed], 255, cv2.LINE_AA, shift=4)
    alpha = cv2.GaussianBlur(cover.astype(np.float32) / 255, (3, 3), 0.6)
    if thing.kind == "box" and rng.random() < 0.5:
        texture = np.broadcast_to(thing.colour, (*alpha.shape, 3))
    else:
        texture = _cutout(rng, photo, alpha.shape)
    bumps = (
        np.linspace(-0.25, 0.25, alpha.shape[1])[None] * light.direction[0]
        + np.linspace(-0.25, 0.25, alpha.shape[0])[:, None] * (light.direction[1])
    )
    shaded = np.clip(texture * (0.85 + bumps[..., None]).astype(np.float32) * light.colour, 0, 1)
    return Layer(int(x0), int(y0), (shaded * alpha[..., None]).astype(np.float32), alpha)


def _cutout(rng: np.random.Generator, photo: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    height, width = min(shape[0], photo.shape[0]), min(shape[1], photo.shape[1])
    top = int(rng.integers(0, photo.shape[0] - height + 1))
    left = int(rng.integers(0, photo.shape[1] - width + 1))
    part = photo[top : top + height, left : left + width, :: 1 if rng.random() < 0.7 else -1]
    resized = cv2.resize(np.ascontiguousarray(part), (shape[1], shape[0]))
    return resized.astype(np.float32) * np.float32(1 / 255)
