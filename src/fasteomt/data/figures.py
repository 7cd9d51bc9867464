"""Draws what carries a head and isn't one: neck, shoulders, torso, arms, legs."""

from __future__ import annotations

import numpy as np

from fasteomt.data.head_shapes import HeadLook
from fasteomt.data.heads import Layer, Light, Pose, draw, inside, lit, noise
from fasteomt.data.solids import Patch, Solid, View, rotation


def body_solids(look: HeadLook) -> list[Solid]:
    """Ellipsoids of the body, in head heights, hanging below a head at the origin: about 7 heads tall."""
    s = look.shoulders
    neck = "cloth" if look.hat == "scarf" else "skin"
    parts = [
        Solid(neck, (0, 0.46, -0.09), (0.18 * s, 0.42, 0.2)),
        Solid("cloth", (0, 0.8, -0.1), (0.42 * s, 0.22, 0.25)),
        Solid("cloth", (0, 1.05, -0.1), (0.84 * s, 0.33, 0.32)),
        Solid("cloth", (0, 1.95, -0.08), (0.62 * s, 1.15, 0.38)),
        Solid("trousers", (0, 3.0, -0.1), (0.56 * s, 0.5, 0.36)),
    ]
    bare = "skin" if look.seed % 3 == 0 else "cloth"
    for side in (-1, 1):
        parts += [
            Solid("cloth", (side * 0.78 * s, 1.46, -0.08), (0.19, 0.58, 0.2), rotation(roll=-side * 0.12)),
            Solid(bare, (side * 0.88 * s, 2.35, 0.0), (0.14, 0.6, 0.15), rotation(roll=-side * 0.04)),
            Solid("skin", (side * 0.9 * s, 3.02, 0.06), (0.12, 0.2, 0.08)),
            Solid("trousers", (side * 0.27 * s, 4.3, -0.08), (0.27, 1.5, 0.28)),
            Solid("trousers", (side * 0.27 * s, 5.7, -0.1), (0.18, 1.0, 0.2)),
            Solid("shoe", (side * 0.3 * s, 6.55, 0.08), (0.17, 0.12, 0.32)),
        ]
    return parts


def draw_body(look: HeadLook, pose: Pose, light: Light, frame: tuple[int, int]) -> Layer | None:
    """The body below a head with this pose; it turns and leans less than the head does."""
    facing = pose.yaw * 0.45 if abs(pose.yaw) < 2 else pose.yaw
    lean = pose.roll * 0.3 if abs(pose.roll) < 0.6 else pose.roll
    view = View((pose.x, pose.y), pose.height, rotation(facing, pose.pitch * 0.15, lean))
    finest = max(70.0, 0.35 * pose.height)
    return draw(body_solids(look), view, frame, lambda patch, _: _paint(look, patch, light), finest)


def _paint(look: HeadLook, patch: Patch, light: Light) -> np.ndarray:
    x, y, z = patch.local.T
    if patch.group == "skin":
        chin = 1 - 0.5 * np.exp(-np.square((y - 0.45) / 0.17))  # the head's shadow on the neck
        albedo = look.skin * (chin * (1 + 0.04 * noise(x * 60, y * 60 + look.seed)))[:, None]
        return lit(albedo, patch.normal, light, look.gloss * 0.6)
    if patch.group == "cloth":
        albedo = look.cloth * np.ones((len(x), 1), np.float32)
        mark = np.zeros_like(x)
        if look.pattern in ("stripes", "checks"):
            mark = (np.sin(y * (9 + look.seed % 17)) > 0.2).astype(np.float32)
        if look.pattern == "checks":
            mark = 0.5 * mark + 0.5 * (np.sin(x * (9 + look.seed % 17)) > 0.2)
        if look.pattern == "badge":
            mark = inside(np.hypot(x - 0.1, y - 1.6) - 0.22, 0.03) * (z > 0)
        albedo = albedo + mark[:, None] * (look.cloth_second - albedo)
        collar = np.clip((1.0 - y) * 3, 0, 0.5) * (look.seed % 2)
        albedo = albedo * (1 - collar[:, None])
    else:
        albedo = look.trousers * (0.4 if patch.group == "shoe" else 1.0) * np.ones((len(x), 1), np.float32)
    folds = 0.12 * noise(x * 24 + look.seed, y * 9) + 0.04 * noise(x * 150, y * 150)
    return lit(albedo * (1 + folds[:, None]), patch.normal, light, 0.04, 8)
