"""Generated training data: heads drawn on photos, with exact COCO polygons.

Every image depends on (seed, split, index) alone, through one random stream of its own, so the result is the
same for any number of workers, and the streams of training and validation never meet. Photos are
split as well (`photos.SPLITS`). Repeatable to the byte for one version of the dependencies.

Truth: the head region is skull, face, ears, hair, beard, hat and glasses; no neck. Its visible part is stored
as polygons, and the true mask is by definition what COCO's rasteriser makes of them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import cv2
import numpy as np

from fasteomt.data.backdrops import backdrop
from fasteomt.data.compose import Ring, compose, rings
from fasteomt.data.distractors import draw_thing, sample_thing
from fasteomt.data.figures import draw_body
from fasteomt.data.head_shapes import HeadLook, sample_look
from fasteomt.data.heads import Layer, Light, Pose, draw_head, sample_light
from fasteomt.data.photos import Split
from fasteomt.data.rasterize import Shape, decode_shape

SMALLEST_HEAD = 12.0
# Width : height of the frames, all of the area asked for; None is the shape asked for itself.
ASPECTS: tuple[tuple[float | None, float], ...] = (
    (None, 0.4), (3 / 2, 0.15), (16 / 9, 0.15), (1.0, 0.12), (3 / 4, 0.12), (9 / 16, 0.06),
)  # fmt: skip
HEADS_PER_IMAGE = (0.14, 0.36, 0.23, 0.13, 0.07, 0.04, 0.03)
SPLIT_STREAM: dict[Split, int] = {"train": 0, "valid": 1}


@dataclass(frozen=True)
class Person:
    """One person of a scene; `occluded` asks for a thing in front of the head."""

    look: HeadLook
    pose: Pose
    body: bool
    occluded: bool


@dataclass(frozen=True)
class Scene:
    """Who stands where in a frame of width x height pixels. `things`: centre x, y, size, shown in front."""

    width: int
    height: int
    light: Light
    people: list[Person]
    things: list[tuple[float, float, float, bool]]


@dataclass
class Sample:
    """An image (H, W, 3) uint8 RGB, the polygons of each visible head, and its JPEG quality."""

    image: np.ndarray
    heads: list[list[Ring]] = field(default_factory=list)
    quality: int = 90


def frame_size(rng: np.random.Generator, width: int, height: int) -> tuple[int, int]:
    """A frame shape drawn from `ASPECTS`."""
    shapes, shares = zip(*ASPECTS, strict=True)
    return frame_of_aspect(shapes[int(rng.choice(len(shapes), p=np.array(shares)))], width, height)


def frame_of_aspect(aspect: float | None, width: int, height: int) -> tuple[int, int]:
    """Width and height, both even, of a frame with that ratio and about the area width x height."""
    if aspect is None:
        return width, height
    wide = np.sqrt(width * height * aspect)
    return 2 * round(wide / 2), 2 * round(wide / aspect / 2)


def head_height(rng: np.random.Generator, width: int, height: int) -> float:
    """From `SMALLEST_HEAD` pixels to half the frame's height, or 0.6 of its width if less.

    Log-uniform, leaning a little to larger ones (exponent 0.8 on the uniform variable).
    """
    largest = max(SMALLEST_HEAD, min(0.5 * height, 0.6 * width))
    return float(SMALLEST_HEAD * (largest / SMALLEST_HEAD) ** (rng.random() ** 0.8))


def sample_pose(rng: np.random.Generator, x: float, y: float, height: float) -> Pose:
    """Mostly towards the camera, some profiles, some backs of heads, a few lying or upside down."""
    kind = rng.random()
    if kind < 0.62:
        yaw = rng.normal(0, 0.4)
    elif kind < 0.8:
        yaw = rng.choice([-1, 1]) * rng.uniform(0.8, 1.8)
    else:
        yaw = rng.choice([-1, 1]) * rng.uniform(1.8, np.pi)
    roll = rng.normal(0, 0.15) if rng.random() < 0.93 else rng.uniform(-np.pi, np.pi)
    return Pose(x, y, height, float(yaw), float(rng.normal(0, 0.18)), float(roll))


def sample_scene(rng: np.random.Generator, width: int, height: int) -> Scene:
    """Heads without heavy overlap, plus distractors; either may be absent."""
    people: list[Person] = []
    for _ in range(int(rng.choice(len(HEADS_PER_IMAGE), p=HEADS_PER_IMAGE))):
        size = head_height(rng, width, height)
        for _ in range(12):
            x, y = rng.uniform(-0.03, 1.03) * width, rng.uniform(0.02, 0.9) * height
            apart = (np.hypot(x - p.pose.x, y - p.pose.y) > 0.45 * (size + p.pose.height) for p in people)
            if all(apart):
                pose = sample_pose(rng, x, y, size)
                people.append(Person(sample_look(rng), pose, rng.random() < 0.94, rng.random() < 0.25))
                break
    if rng.random() < 0.07:  # a body whose head is above the frame
        size = rng.uniform(0.15, 0.4) * height
        pose = sample_pose(rng, rng.uniform(0, 1) * width, -1.0 * size, size)
        people.append(Person(sample_look(rng), Pose(pose.x, pose.y, size, 0.0, 0.0, 0.0), True, False))
    people.sort(key=lambda person: person.pose.height)  # nearer ones in front
    things = []
    for _ in range(min(8, int(rng.poisson(2.4)))):
        size = float(np.exp(rng.uniform(np.log(14), np.log(0.6 * height))))
        things.append((rng.uniform(0, 1) * width, rng.uniform(0, 1) * height, size, rng.random() < 0.25))
    return Scene(width, height, sample_light(rng), people, things)


def draw_scene(rng: np.random.Generator, scene: Scene, split: Split) -> Sample:
    """Render a scene on photos of one split and photograph it: blur, noise, colour cast, JPEG quality."""
    frame = (scene.width, scene.height)
    view = backdrop(rng, split, *frame)
    if rng.random() < 0.4:
        view = cv2.GaussianBlur(view, (0, 0), rng.uniform(0.5, 3.0))
    other = backdrop(rng, split, *frame)
    if rng.random() < 0.2:
        _panel(rng, view, other)
    image = view.astype(np.float32)
    image *= np.float32(1 / 255)
    layers: list[Layer | None] = []
    front: list[Layer | None] = []
    for x, y, size, before in scene.things:
        layer = draw_thing(sample_thing(rng), x, y, size, scene.light, frame, other)
        (front if before else layers).append(layer)
    for person in scene.people:
        pose = person.pose
        if person.body:
            layers.append(draw_body(person.look, pose, scene.light, frame))
        layers.append(draw_head(person.look, pose, scene.light, frame))
        if person.occluded:
            away, turn = rng.uniform(0.35, 0.75) * pose.height, rng.uniform(0, 2 * np.pi)
            x, y = pose.x + away * np.cos(turn), pose.y + away * np.sin(turn)
            size = rng.uniform(0.4, 1.1) * pose.height
            layers.append(draw_thing(sample_thing(rng), x, y, size, scene.light, frame, other))
    shown = [layer for layer in layers + front if layer is not None]
    heads = compose(image, shown, shadow=rng.uniform(0, 0.5))
    outlines = [polygons for polygons in map(rings, heads) if polygons]
    return Sample(photograph(rng, image), outlines, int(rng.integers(60, 96)))


def _panel(rng: np.random.Generator, image: np.ndarray, other: np.ndarray) -> None:
    """A rectangle of another photo in the background: posters, windows, screens."""
    height, width = image.shape[:2]
    w, h = (int(rng.uniform(0.15, 0.6) * size) for size in (width, height))
    x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
    image[y : y + h, x : x + w] = cv2.resize(other, (w, h), interpolation=cv2.INTER_AREA)


def photograph(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """What a camera does: (H, W, 3) float32 0..1 in, uint8 out. Blurs are symmetric: edges stay in place."""
    height, width = image.shape[:2]
    kind = rng.random()
    if kind < 0.5:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 1.3))
    elif kind < 0.6:
        length, turn = int(rng.integers(1, 5)) * 2 + 1, rng.uniform(0, np.pi)
        kernel = np.zeros((length, length), np.float32)
        reach = (length - 1) / 2 * np.array([np.cos(turn), np.sin(turn)])
        start, end = np.rint(length // 2 - reach).astype(int), np.rint(length // 2 + reach).astype(int)
        cv2.line(kernel, start.tolist(), end.tolist(), 1)
        image = cv2.filter2D(image, -1, kernel / kernel.sum(), borderType=cv2.BORDER_REPLICATE)
    elif kind < 0.7:
        share = rng.uniform(0.5, 0.85)
        small = cv2.resize(image, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
        image = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    if rng.random() < 0.06:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    gain = np.ones((height, width), np.float32)
    if rng.random() < 0.3:
        across, down = (np.linspace(-1, 1, size, dtype=np.float32) ** 2 for size in (width, height))
        gain -= np.float32(rng.uniform(0.05, 0.25)) * (across[None] + down[:, None])
    cast = rng.uniform(0.8, 1.12) * rng.normal(1, 0.05, 3)
    flat = image.reshape(height, -1)  # rows of RGBRGB...: long rows multiply faster than triples
    flat *= np.repeat(gain, 3, axis=1) * np.tile(cast, width).astype(np.float32)
    return finish(rng, image, float(rng.uniform(0, 0.03)))


@functools.lru_cache(maxsize=1)
def _grain() -> np.ndarray:
    """(1024, 3 * 1024) float32 normal noise in rows of RGBRGB..., part of it shared by the three colours."""
    rng = np.random.default_rng(11)
    luma = rng.standard_normal((1024, 1024), np.float32)
    own = rng.standard_normal((1024, 3 * 1024), np.float32)
    return np.float32(0.8) * np.repeat(luma, 3, axis=1) + np.float32(0.5) * own


def finish(rng: np.random.Generator, image: np.ndarray, grain: float) -> np.ndarray:
    """Adds sensor noise of strength `grain` and rounds: (H, W, 3) float32 0..1 (overwritten) -> uint8."""
    height, width = image.shape[:2]
    flat = image.reshape(height, -1)
    bank = _grain()
    for top in range(0, height, 1024):
        for left in range(0, width, 1024):
            part = flat[top : top + 1024, 3 * left : 3 * (left + 1024)]
            rows, columns = part.shape
            y, x = int(rng.integers(1025 - rows)), 3 * int(rng.integers(1025 - columns // 3))
            part += np.float32(grain) * bank[y : y + rows, x : x + columns]
    flat *= 255
    flat += 0.5
    return np.clip(image, 0, 255, out=image).astype(np.uint8)


def generate(seed: int, split: Split, index: int, width: int = 640, height: int = 480) -> Sample:
    """Image number `index` of a split; the frame has about the area width x height pixels."""
    rng = np.random.default_rng([seed, SPLIT_STREAM[split], index])
    frame = frame_size(rng, width, height)
    return draw_scene(rng, sample_scene(rng, *frame), split)


def encode(sample: Sample) -> bytes:
    """The JPEG file of a sample."""
    bgr = sample.image[..., ::-1]
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, sample.quality])[1].tobytes()


def shapes_of(sample: Sample) -> list[Shape]:
    """The visible part of each head, as COCO's rasteriser takes it; class 1."""
    rings = ((np.reshape(ring, (-1, 2)) for ring in polygons) for polygons in sample.heads)
    return [Shape(0, 1, False, tuple(points)) for points in rings]


def mask_of(sample: Sample) -> np.ndarray:
    """(H, W) uint8: 1 where a head is visible, else 0."""
    height, width = sample.image.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    for shape in shapes_of(sample):
        mask |= decode_shape(shape, height, width)
    return mask
