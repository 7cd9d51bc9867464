"""Backgrounds of training images that go beyond the few photos: cut-outs, textures and shapes piled up.

A model that saw fifteen photos calls everything else a head. Here a frame is filled by "dead leaves":
random outlines in front of one another, each filled with a warped, recoloured piece of a photo, with
grain, stripes or a colour, and shaded flat, round or mirror-like. None of it is labelled.
"""

from __future__ import annotations

import cv2
import numpy as np

from fasteomt.data.head_shapes import any_colour, skin_colour
from fasteomt.data.photos import Split, pick_photo, random_view, recolour

LEAVES = (3, 45)  # how many of them; log-uniform
SMALLEST_LEAF = 12.0


def backdrop(rng: np.random.Generator, split: Split, width: int, height: int) -> np.ndarray:
    """A background of (height, width, 3) uint8 RGB: a photo, or for training often leaves on one."""
    if split == "valid":
        return random_view(rng, pick_photo(rng, split), width, height)
    view = _altered(rng, random_view(rng, pick_photo(rng, split), width, height))
    if rng.random() < 0.45:
        low, high = np.log(LEAVES)
        for _ in range(int(np.exp(rng.uniform(low, high)))):
            _leaf(rng, view, split)
        if rng.random() < 0.5:
            view = _altered(rng, view)
    return view


def _altered(rng: np.random.Generator, view: np.ndarray) -> np.ndarray:
    """Now and then bent, with channels swapped, inverted or recoloured again."""
    if rng.random() < 0.25:
        view = _bent(rng, view)
    if rng.random() < 0.3:
        view = np.ascontiguousarray(view[..., rng.permutation(3)])
    if rng.random() < 0.06:
        view = 255 - view
    if rng.random() < 0.3:
        view = recolour(rng, view)
    return np.ascontiguousarray(view)


def _bent(rng: np.random.Generator, view: np.ndarray) -> np.ndarray:
    """Displaced by a smooth random field of up to a sixth of the frame, as in a curved mirror."""
    height, width = view.shape[:2]
    knots = int(rng.integers(3, 7))
    field = rng.normal(0, rng.uniform(0.01, 0.06), (knots, knots, 2)).astype(np.float32) * min(height, width)
    smooth = cv2.resize(field, (width, height), interpolation=cv2.INTER_CUBIC)
    smooth += np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    x, y = cv2.split(smooth)
    return np.asarray(cv2.remap(view, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101))


def _leaf(rng: np.random.Generator, view: np.ndarray, split: Split) -> None:
    """Draw one shape onto `view` in place."""
    height, width = view.shape[:2]
    size = SMALLEST_LEAF * (0.8 * min(height, width) / SMALLEST_LEAF) ** rng.random()
    outline = _outline(rng) * size * np.array([rng.uniform(0.4, 1.0), 1.0])
    turn = rng.uniform(0, 2 * np.pi)
    outline @= np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    outline += rng.uniform(-0.05, 1.05, 2) * np.array([width, height])
    x0, y0 = np.clip(np.floor(outline.min(axis=0)).astype(int) - 2, 0, [width, height])
    x1, y1 = np.clip(np.ceil(outline.max(axis=0)).astype(int) + 2, 0, [width, height])
    if x1 - x0 < 4 or y1 - y0 < 4:
        return
    cover = np.zeros((y1 - y0, x1 - x0), np.uint8)
    fixed = np.round((outline - [x0, y0] - 0.5) * 16).astype(np.int32)
    cv2.fillPoly(cover, [fixed], 255, cv2.LINE_AA, shift=4)
    soft = rng.uniform(0.7, 4) if rng.random() < 0.3 else 0.3  # of the edge, pixels
    alpha = np.asarray(cv2.GaussianBlur(cover.astype(np.float32) / 255, (0, 0), soft))[..., None]
    filling = _filling(rng, split, x1 - x0, y1 - y0) * _shading(rng, x1 - x0, y1 - y0)
    part = view[y0:y1, x0:x1]
    part[:] = np.clip(part * (1 - alpha) + filling * alpha, 0, 255)


def _outline(rng: np.random.Generator) -> np.ndarray:
    """(N, 2) points within about half a unit of the origin: round, wavy, or a polygon."""
    kind = rng.random()
    if kind < 0.35:
        turn = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 8))))
        radius = rng.uniform(0.3, 0.55, len(turn))
    else:
        turn = np.linspace(0, 2 * np.pi, 72, endpoint=False)
        radius = np.full(72, 0.48)
        if kind > 0.6:
            for k in range(2, 7):
                radius += rng.normal(0, 0.08 / k) * np.cos(k * turn + rng.uniform(0, 2 * np.pi))
    return np.stack([np.sin(turn) * radius, np.cos(turn) * radius], axis=1)


def _filling(rng: np.random.Generator, split: Split, width: int, height: int) -> np.ndarray:
    """(height, width, 3) float32 0..255 texture."""
    kind = rng.random()
    if kind < 0.45:
        return _altered(rng, random_view(rng, pick_photo(rng, split), width, height, 0.1)).astype(np.float32)
    first = skin_colour(rng) if rng.random() < 0.3 else any_colour(rng)
    if kind < 0.6:
        share = np.zeros((height, width), np.float32)
    elif kind < 0.85:
        share = _clouds(rng, width, height)
    else:
        turn, step = rng.uniform(0, np.pi), rng.uniform(3, 40)
        y, x = np.mgrid[:height, :width]
        wave = np.sin((x * np.cos(turn) + y * np.sin(turn)) * 2 * np.pi / step).astype(np.float32)
        share = np.clip(wave * rng.uniform(0.5, 6) + 0.5, 0, 1)
    mixed = first + share[..., None] * (any_colour(rng) - first)
    return np.float32(255) * mixed.astype(np.float32)


def _clouds(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """(height, width) float32 0..1: noise of several scales added up, some of it stretched."""
    total = np.zeros((height, width), np.float32)
    rough, stretch = rng.uniform(0.4, 0.9), rng.choice([1, 1, 4])
    for octave in range(1, 7):
        knots = 2**octave
        shape = (min(height, knots), min(width, knots * int(stretch)))
        layer = rng.standard_normal(shape, np.float32)
        total += np.float32(rough**octave) * cv2.resize(
            layer, (width, height), interpolation=cv2.INTER_LINEAR
        )
    return np.clip(0.5 + total * rng.uniform(0.4, 1.5), 0, 1)


def _shading(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """(height, width, 1) float32 factor: even, across, or round with a highlight."""
    kind = rng.random()
    if kind < 0.3:
        return np.ones((height, width, 1), np.float32)
    x, y = np.meshgrid(
        np.linspace(-1, 1, width, dtype=np.float32), np.linspace(-1, 1, height, dtype=np.float32)
    )
    turn = rng.uniform(0, 2 * np.pi)
    across = x * np.float32(np.cos(turn)) + y * np.float32(np.sin(turn))
    if kind < 0.55:
        return (1 + np.float32(rng.uniform(0.1, 0.5)) * across)[..., None]
    depth = np.sqrt(np.clip(1 - x * x - y * y, 0, 1))
    light = 0.45 + 0.45 * depth + 0.35 * across
    for _ in range(int(rng.integers(0, 4))):
        px, py = rng.uniform(-0.7, 0.7, 2)
        wide = rng.uniform(0.03, 0.3)
        light += np.float32(rng.uniform(0.3, 2.5)) * np.exp(-((x - px) ** 2 + (y - py) ** 2) / wide**2)
    return light.astype(np.float32)[..., None]
