"""Draws a head: colours the ellipsoids of `head_shapes` and lights them.

The head region is skull, face, ears, hair, beard, hat and glasses. Neck, shoulders and clothes are not head:
`figures` draws them as a separate layer below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from fasteomt.data.head_shapes import HeadLook, solids
from fasteomt.data.solids import Patch, Solid, View, extent, render, rotation

# Colours (N, 3) of a patch; the number is the size of a computed pixel in head heights.
Paint = Callable[[Patch, float], np.ndarray]
WHITE, BLACK = np.ones(3, np.float32), np.full(3, 0.02, np.float32)
TEETH, EYEBALL = np.array([[0.93, 0.91, 0.86], [0.92, 0.9, 0.88]], np.float32)
COMPUTED = 200.0  # pixels per head height that are always computed; larger heads may be enlarged


@dataclass(frozen=True)
class Light:
    """Unit vector towards the lamp (y down, z to the viewer), its colour and the share of ambient light."""

    direction: np.ndarray
    colour: np.ndarray
    ambient: float


@dataclass(frozen=True)
class Pose:
    """Where and how a head stands: centre (x, y) and height in pixels, angles in radians."""

    x: float
    y: float
    height: float
    yaw: float
    pitch: float
    roll: float


@dataclass
class Layer:
    """A drawn thing: its corner in the frame, colour times alpha (h, w, 3) and alpha (h, w), float32 0..1."""

    x: int
    y: int
    colour: np.ndarray
    alpha: np.ndarray
    is_head: bool = False


def sample_light(rng: np.random.Generator) -> Light:
    """A lamp somewhere above or beside the camera."""
    direction = np.array([rng.normal(0, 0.7), rng.uniform(-1.0, 0.15), rng.uniform(0.35, 1.0)])
    warm = rng.normal(0, 0.07)
    colour = np.array([1 + warm, 1.0, 1 - warm]) * rng.uniform(0.8, 1.15)
    direction /= np.linalg.norm(direction)
    return Light(direction.astype(np.float32), colour.astype(np.float32), rng.uniform(0.25, 0.6))


@functools.lru_cache(maxsize=1)
def _noise() -> np.ndarray:
    """(256, 256) float32 smooth-plus-fine noise around 0, the same in every run; tiles without seams."""
    rng = np.random.default_rng(7)
    total = np.zeros((256, 256), np.float32)
    for cells in (8, 32, 128):
        grid = np.pad(rng.standard_normal((cells, cells)).astype(np.float32), 2, mode="wrap")
        size = 256 // cells
        total += cv2.resize(grid, None, fx=size, fy=size, interpolation=cv2.INTER_CUBIC)[
            2 * size : -2 * size, 2 * size : -2 * size
        ]
    return total / 2


def noise(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Tiling noise at coordinates in cells of 1/256 tile: same shape, float32, about +-1."""
    return _noise()[v.astype(np.int32) & 255, u.astype(np.int32) & 255]


def blend(base: np.ndarray, colour: np.ndarray, amount: np.ndarray) -> None:
    """Mix `colour` (3,) or (N, 3) into `base` (N, 3) in place; `amount` (N,) in 0..1."""
    base += amount[:, None] * (colour - base)


def inside(distance: np.ndarray, soft: float) -> np.ndarray:
    """1 where a signed distance is negative, 0 where positive, a ramp of width `soft` between."""
    return np.clip(0.5 - distance / np.float32(soft), 0, 1)


def lit(albedo: np.ndarray, normal: np.ndarray, light: Light, gloss: float, sharp: float = 20) -> np.ndarray:
    """Wrapped diffuse plus Blinn highlight: albedo (N, 3), unit normals (N, 3) -> colour (N, 3)."""
    cosine = normal @ light.direction
    diffuse = np.clip(0.8 * cosine + 0.2, 0, 1)
    rim = 0.72 + 0.28 * normal[:, 2].clip(0)
    half = light.direction + np.array([0, 0, 1], np.float32)
    shine = np.clip(normal @ (half / np.linalg.norm(half)), 0, 1) ** np.float32(sharp) * np.float32(gloss)
    shade = (light.ambient + (1 - light.ambient) * diffuse[:, None] * light.colour) * rim[:, None]
    return albedo * shade + shine[:, None] * light.colour


def draw(parts: list[Solid], view: View, frame: tuple[int, int], paint: Paint, finest: float) -> Layer | None:
    """Render solids into a layer clipped to the frame, antialiased; None when nothing of it is in the frame.

    Args:
        frame: (width, height) in pixels.
        finest: most pixels per unit that are computed; above it the drawing is enlarged.
    """
    x0, y0, x1, y1 = extent(parts, view)
    x0, y0 = max(0, int(np.floor(x0)) - 2), max(0, int(np.floor(y0)) - 2)
    x1, y1 = min(frame[0], int(np.ceil(x1)) + 2), min(frame[1], int(np.ceil(y1)) + 2)
    if x0 >= x1 or y0 >= y1:
        return None
    up = 3.0 if view.scale < 28 else 2.0 if view.scale < 70 else min(1.0, finest / view.scale)
    width, height = x1 - x0, y1 - y0
    inner_w, inner_h = max(1, int(np.ceil(width * up))), max(1, int(np.ceil(height * up)))
    zoomed = View(((view.origin[0] - x0) * up, (view.origin[1] - y0) * up), view.scale * up, view.rotation)
    canvas = np.zeros((inner_h, inner_w, 4), np.float32)
    for patch in render(parts, zoomed, inner_w, inner_h):
        canvas[patch.rows, patch.columns, :3] = np.clip(paint(patch, 1 / zoomed.scale), 0, 1)
        canvas[patch.rows, patch.columns, 3] = 1
    if up > 1:
        canvas = cv2.resize(canvas, (width, height), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    else:
        cv2.GaussianBlur(canvas, (3, 3), 0.6, dst=canvas)
    if up < 1:
        centred = np.array([[up, 0, (up - 1) / 2], [0, up, (up - 1) / 2]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        canvas = cv2.warpAffine(  # type: ignore[assignment]
            canvas, centred, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE
        )
    if not canvas[..., 3].any():
        return None
    return Layer(x0, y0, canvas[..., :3], canvas[..., 3])


def draw_head(look: HeadLook, pose: Pose, light: Light, frame: tuple[int, int]) -> Layer | None:
    """The head region of one person, or None when it is outside the frame (width, height)."""
    view = View((pose.x, pose.y), pose.height, rotation(pose.yaw, pose.pitch, pose.roll))

    def paint(patch: Patch, detail: float) -> np.ndarray:
        if patch.group == "skin":
            return lit(_skin(look, patch.local, detail), patch.normal, light, look.gloss, 24)
        if patch.group == "hair":
            return lit(_hair(look, patch.local), patch.normal, light, 0.18, 10)
        colour = look.hat_colour if patch.group == "hat" else look.hat_second
        x, y, z = patch.local.T
        weave = 0.05 * noise(x * 90 + look.seed, y * 90 + z * 60)
        return lit(
            colour * (1 + weave[:, None]), patch.normal, light, 0.3 if look.hat == "helmet" else 0.05, 20
        )

    layer = draw(solids(look), view, frame, paint, finest=max(COMPUTED, 0.5 * pose.height))
    if layer is not None:
        layer.is_head = True
    return layer


def _hair(look: HeadLook, local: np.ndarray) -> np.ndarray:
    x, y, z = local.T
    around = np.arctan2(x, z - 0.02) * 60
    strands = noise(around * 2.2 + look.seed, y * 14 + x * 5) * 0.22 + noise(x * 40, y * 40 + z * 40) * 0.1
    return look.hair * (1 + strands[:, None])


def _skin(look: HeadLook, local: np.ndarray, detail: float) -> np.ndarray:
    """Albedo (N, 3) of the face at local points (N, 3)."""
    x, y, z = local.T
    soft = max(1.5 * detail, 0.006)
    albedo = np.repeat(look.skin[None], len(x), axis=0)
    albedo *= 1 + 0.045 * noise(x * 60 + look.seed, y * 60 + z * 30)[:, None]
    face = np.clip((z - 0.12) * 20, 0, 1)
    flush = np.exp(-(np.square((np.abs(x) - 0.18) / 0.09) + np.square((y - 0.12) / 0.08))) * face
    blend(albedo, look.skin * np.array([1.0, 0.72, 0.7], np.float32), flush * 0.5)
    ear = np.exp(-(np.square((z + 0.04) / 0.035) + np.square((y - 0.02) / 0.06))) * (
        np.abs(x) > 0.33 * look.width
    )
    albedo *= 1 - 0.45 * ear[:, None]
    _scalp_and_beard(look, albedo, x, y, z)
    _eyes(look, albedo, x, y, face, soft)
    _mouth(look, albedo, x, y, face, soft)
    if look.glasses != "none":
        _glasses(look, albedo, x, y, z, soft)
    if look.hat not in ("none", "scarf"):
        albedo *= 1 - 0.45 * np.exp(-np.square((y - look.hat_low) / 0.07))[:, None]
    return albedo


def _scalp_and_beard(look: HeadLook, albedo: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    grain = 0.75 + 0.25 * noise(x * 220 + look.seed, y * 220 + z * 180)
    if look.hair_style in ("buzz", "ring", "mohawk") and look.hat != "scarf":
        line = np.interp(z, [-0.28, -0.08, 0.1, 0.26], [0.2, 0.1, 0.04, look.hairline])
        dense = 0.8 if look.hair_style == "buzz" else 0.35
        blend(albedo, look.hair, np.clip((line - y) * 12, 0, 1) * dense * grain)
    if look.beard == "none":
        return
    lower = np.clip((y - np.interp(z, [-0.05, 0.1, 0.3], [0.05, 0.12, 0.3])) * 14, 0, 1)
    lower *= np.clip((z + 0.05) * 10, 0, 1)
    bow = np.abs(y - 0.205 - np.square(x) * 2) - 0.028
    moustache = inside(np.maximum(np.abs(x) - 0.13, bow), 0.025) * (z > 0.15)
    chin = inside(np.hypot(x / 1.1, (y - 0.4) * 0.9) - 0.1, 0.05) * (z > 0)
    amount = {
        "stubble": 0.35 * np.maximum(lower, moustache), "moustache": moustache,
        "goatee": np.maximum(moustache, chin),
    }.get(look.beard, np.maximum(lower, moustache))  # fmt: skip
    blend(albedo, look.hair, amount * grain)


def _eyes(
    look: HeadLook, albedo: np.ndarray, x: np.ndarray, y: np.ndarray, face: np.ndarray, soft: float
) -> None:
    wide, tall = look.eye_size, look.eye_size * look.eye_open
    for side in (-1, 1):
        dx, dy = x - side * look.eye_gap, y + 0.01
        near = np.nonzero((np.abs(dx) < 0.14) & (np.abs(dy + 0.03) < 0.13) & (face > 0))[0]
        if not near.size:
            continue
        dx, dy, shown, tint = dx[near], dy[near], face[near], albedo[near]
        socket = np.exp(-(np.square(dx / 0.1) + np.square(dy / 0.06)))
        tint *= 1 - 0.3 * (socket * shown)[:, None]
        eye = (np.hypot(dx / wide, dy / tall) - 1) * min(wide, tall)
        white = inside(eye, soft) * shown
        blend(tint, EYEBALL, white)
        gx, gy = look.gaze[0] * wide * 0.6, look.gaze[1] * tall
        reach = np.hypot(dx - gx, dy - gy)
        blend(tint, look.iris, inside(reach - 0.034, soft) * white)
        blend(tint, BLACK, inside(reach - 0.016, soft) * white)
        glint = np.hypot(dx - gx - 0.012, dy - gy + 0.012) - 0.007
        blend(tint, WHITE, inside(glint, soft) * white)
        lid = inside(np.abs(eye) - 0.007, soft) * np.clip(0.4 - dy / tall, 0.15, 1)
        blend(tint, look.skin * np.float32(0.25), np.clip(lid, 0, 1) * shown * 0.8)
        arc = dy + 0.085 + look.brow_tilt * dx * side + 6 * np.square(dx) - 0.02
        brow = inside(np.maximum(np.abs(arc) - look.brow, np.abs(dx) - 0.085), max(soft, 0.012)) * shown
        blend(tint, look.hair * np.float32(0.7), brow * 0.85)
        albedo[near] = tint


def _mouth(
    look: HeadLook, albedo: np.ndarray, x: np.ndarray, y: np.ndarray, face: np.ndarray, soft: float
) -> None:
    near = np.nonzero((np.abs(x) < 0.16) & (y > 0.1) & (y < 0.4) & (face > 0))[0]
    if not near.size:
        return
    dx, shown, tint = x[near], face[near], albedo[near]
    wide = look.mouth_width
    along = np.clip(1 - np.square(dx / wide), 0, 1)
    dy = y[near] - 0.265 - look.smile * (1 - 2 * np.square(dx / wide)) * 0.8
    gape = look.mouth_open * 0.055 * along
    lips = inside(np.abs(dy) - (look.lip * np.sqrt(along) + gape), soft) * (along > 0) * shown
    blend(tint, look.lips, lips * 0.85)
    gap = inside(np.abs(dy) - 0.005 - gape, soft) * (along > 0.03)
    blend(tint, look.lips * np.float32(0.25), gap * shown)
    if look.mouth_open > 0.3:
        teeth = inside(np.maximum(np.abs(dy + gape * 0.5) - gape * 0.45, np.abs(dx) - wide * 0.75), soft)
        blend(tint, TEETH, teeth * shown)
    nostril = inside(np.hypot((np.abs(dx) - 0.03) / 1.4, y[near] - 0.158) - 0.012, soft)
    blend(tint, look.skin * np.float32(0.3), nostril * shown * 0.8)
    under = np.exp(-(np.square(dx / 0.07) + np.square((y[near] - 0.185) / 0.02)))
    tint *= 1 - 0.2 * (under * shown)[:, None]
    albedo[near] = tint


def _glasses(
    look: HeadLook, albedo: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray, soft: float
) -> None:
    shown = (z > 0.1).astype(np.float32)
    rim = np.hypot(np.abs(x) - look.eye_gap, (y - 0.005) * 1.15) - 0.105
    bridge = np.maximum(np.abs(x) - 0.05, np.abs(y + 0.03) - 0.012)
    arm = np.maximum(np.abs(y + 0.03) - 0.014, -(np.abs(x) - look.eye_gap - 0.09))
    arm = np.maximum(arm, -(z + 0.06))
    if look.glasses == "sun":
        blend(albedo, look.glasses_colour * np.float32(0.35), inside(rim, soft) * shown * 0.93)
        streak = inside(np.abs(y + x * 0.6 + 0.03) - 0.012, 0.03) * inside(rim + 0.02, soft)
        blend(albedo, WHITE, streak * shown * 0.35)
    frame = np.minimum(np.abs(rim) - 0.011, bridge)
    blend(albedo, look.glasses_colour, inside(frame, soft) * shown)
    blend(albedo, look.glasses_colour, inside(arm, soft) * (z > -0.06))
