"""A generated video with exact truth: heads that move, turn, enter, leave and pass behind things.

The camera pans over one held-out photo (`photos.SPLITS["valid"]`); people and motion come from
the seed alone. On one build of the libraries the same arguments give the same bytes.
True masks are made at full resolution: a pixel is head when at least half of it shows head.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import cv2
import numpy as np

from fasteomt.data.compose import compose
from fasteomt.data.distractors import Thing, draw_thing, sample_thing
from fasteomt.data.figures import draw_body
from fasteomt.data.head_shapes import HeadLook, sample_look
from fasteomt.data.heads import Layer, Light, Pose, draw_head, sample_light
from fasteomt.data.photos import load_photo
from fasteomt.data.scenes import finish
from fasteomt.errors import InputError, brief
from fasteomt.files import check_target, put_in_place
from fasteomt.video.write import VideoWriter

Pair = tuple[float, float]
CLIP_STREAM = 2  # scenes.SPLIT_STREAM uses 0 and 1
PHOTOS = ("china", "coffee")
# What the encoders and containers take without tricks, and more than a test clip needs.
SIDES = (32, 8192)
MAX_FRAMES = 1_000_000
RATES = (0.01, 1000.0)  # frames per second; Matroska tells times apart by milliseconds
BITRATES = (1_000, 1_000_000_000)  # bits per second; x264 counts in thousands


@dataclass(frozen=True)
class Actor:
    """A person and their path. Positions and heights are shares of the frame, times run from 0 to 1."""

    look: HeadLook
    start: Pair
    end: Pair
    height: Pair
    yaw: Pair
    sway: tuple[float, float, float]  # amplitudes of yaw, pitch and roll, radians
    phase: float
    shown: Pair = (0.0, 1.0)

    def pose(self, time: float, width: int, height: int) -> Pose:
        """Where this person is at `time`: on a straight path, coming to rest at the end of `shown`."""
        begin, end = self.shown
        way = min(1.0, (time - begin) / (end - begin))
        way *= 2 - way
        x = self.start[0] + way * (self.end[0] - self.start[0])
        y = self.start[1] + way * (self.end[1] - self.start[1]) + 0.012 * np.sin(22 * time + self.phase)
        size = self.height[0] + way * (self.height[1] - self.height[0])
        turn = 2 * np.pi * time + self.phase
        yaw = self.yaw[0] + way * (self.yaw[1] - self.yaw[0]) + self.sway[0] * np.sin(2 * turn)
        pitch, roll = self.sway[1] * np.sin(1.6 * turn + 1), self.sway[2] * np.sin(1.3 * turn + 2)
        return Pose(x * width, y * height, size * height, float(yaw), float(pitch), float(roll))


@dataclass(frozen=True)
class Story:
    """A whole clip: its people (far to near), things (with their place and size), light and camera."""

    actors: list[Actor]
    things: list[tuple[Thing, float, float, float]]
    pole: tuple[Thing, float]
    light: Light
    photo: np.ndarray
    pan: tuple[float, float, float, float]


def tell(seed: int) -> Story:
    """Draw the people and the plot of a clip.

    One person crosses behind a pole, one enters and turns round, one rises near the camera, one crosses in
    front of all and leaves. All start outside the frame, so 0 to 4 heads are seen at once.
    """
    rng = np.random.default_rng([seed, CLIP_STREAM, 0])
    side = 1 if rng.random() < 0.5 else -1

    def across(x: float) -> float:
        return x if side > 0 else 1 - x

    def actor(start: Pair, end: Pair, height: Pair, shown: Pair) -> Actor:
        facing = 0.9 * np.sign(across(end[0]) - across(start[0])) * min(1, 2 * abs(end[0] - start[0]))
        yaw = (facing + rng.normal(0, 0.25), facing + rng.normal(0, 0.25))
        sway = (rng.uniform(0.2, 0.5), rng.uniform(0.05, 0.15), rng.uniform(0.03, 0.12))
        return Actor(
            sample_look(rng), (across(start[0]), start[1]), (across(end[0]), end[1]), height, yaw, sway,
            rng.uniform(0, 6), shown,
        )  # fmt: skip

    actors = [
        actor((-0.13, 0.42), (1.25, 0.38), (0.1, 0.13), (0.04, 1.05)),  # crosses behind the pole
        actor((1.2, 0.5), (0.62, 0.46), (0.2, 0.24), (0.06, 0.8)),  # enters and stays
        actor((0.3, 1.3), (0.26, 0.5), (0.34, 0.38), (0.12, 0.75)),  # rises near the camera, face on
        actor((0.85, 1.35), (-0.45, 0.5), (0.26, 0.3), (0.3, 0.95)),  # crosses in front and leaves
    ]
    facing = actors[1].yaw[0]
    actors[1] = dataclasses.replace(actors[1], yaw=(facing, facing + 2.6 * side))
    things = []
    for _ in range(5):
        size = float(np.exp(rng.uniform(-3.2, -1.4)))
        things.append((sample_thing(rng), rng.uniform(0.05, 0.95), rng.uniform(0.1, 0.9), size))
    pole = sample_thing(rng)
    pole = Thing("pole", pole.colour, pole.second, np.eye(3), 0.2, pole.seed)
    photo = load_photo(PHOTOS[int(rng.integers(len(PHOTOS)))])
    pan = (rng.uniform(0, 0.3), rng.uniform(0.7, 1.0), rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8))
    return Story(actors, things, (pole, rng.uniform(0.42, 0.52)), sample_light(rng), photo, pan)


def draw_frame(story: Story, time: float, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """One moment of the clip, `time` in 0..1.

    Returns:
        Frame (height, width, 3) float32 RGB in 0..1, still without camera noise, and its true mask
        (height, width) uint8: 1 where head.
    """
    size = (width, height)
    image = _background(story, time, width, height)
    layers: list[Layer | None] = []
    for thing, x, y, share in story.things:
        drift = 0.03 * np.sin(5 * time + thing.seed)
        place = ((x + drift) * width, y * height, share * height)
        layers.append(draw_thing(thing, *place, story.light, size, story.photo))
    pole, share = story.pole
    pole_layer = draw_thing(pole, share * width, 0.5 * height, 0.5 * height, story.light, size, story.photo)
    for index, actor in enumerate(story.actors):
        pose = actor.pose(time, width, height)
        layers.append(draw_body(actor.look, pose, story.light, size))
        layers.append(draw_head(actor.look, pose, story.light, size))
        if index == 0:
            layers.append(pole_layer)
    mask = np.zeros((height, width), np.uint8)
    for head in compose(image, [layer for layer in layers if layer is not None], shadow=0.2):
        part = mask[head.y : head.y + head.alpha.shape[0], head.x : head.x + head.alpha.shape[1]]
        part[head.alpha >= 0.5] = 1
    return image, mask


def _background(story: Story, time: float, width: int, height: int) -> np.ndarray:
    """The photo seen through a window that pans from one corner region to another."""
    rows, columns = story.photo.shape[:2]
    fit = 0.8 * min(columns / width, rows / height)
    ease = 0.5 - 0.5 * np.cos(np.pi * time)
    left = (story.pan[0] + ease * (story.pan[1] - story.pan[0])) * (columns - fit * width)
    top = (story.pan[2] + ease * (story.pan[3] - story.pan[2])) * (rows - fit * height)
    matrix = np.array([[fit, 0, left], [0, fit, top]])
    flags = (cv2.INTER_CUBIC if fit < 1 else cv2.INTER_AREA) | cv2.WARP_INVERSE_MAP
    view = cv2.warpAffine(story.photo, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    image = view.astype(np.float32)
    image *= np.float32(1 / 255)
    return image


def write_clip(
    path: str | Path,
    *,
    width: int = 1900,
    height: int = 1440,
    frames: int = 126,
    fps: float = 25.0,
    bitrate: int = 8_000_000,
    seed: int = 0,
    masks_path: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Render a clip to H.264 (yuv420p, BT.709, fixed bitrate) and its true masks to FFV1 gray, in step.

    Args:
        path: .mp4 to write. Frame n is shown at n / fps seconds, in the masks too.
        width, height: pixels, even, within `SIDES`.
        frames: at most `MAX_FRAMES`.
        fps: frames per second, within `RATES`.
        bitrate: bits per second, within `BITRATES`.
        masks_path: .mkv for the masks (0 background, 1 head); default: beside `path`, as `NAME.masks.mkv`.
        progress: called with (frames done, frames in all).

    Returns:
        The path of the masks.

    Raises:
        InputError: bad sizes or counts, or an output exists (without `overwrite`), is no file, can't be
            written or is the other one too.
        UnsupportedError: an encoder or the package of the photos is missing.
    """
    path = Path(path)
    if path.suffix.lower() != ".mp4":
        raise InputError(f"{path}: a clip is an .mp4 file: choose a name that ends so")
    masks_path = Path(masks_path) if masks_path is not None else path.with_suffix(".masks.mkv")
    _check_figures(width, height, frames, fps, bitrate, seed)
    targets = _check_targets(path, masks_path, overwrite)
    story = tell(seed)
    rng = np.random.default_rng([seed, CLIP_STREAM, 1])
    open_writer = functools.partial(VideoWriter, width=width, height=height, fps=fps, overwrite=overwrite)
    with ExitStack() as unfinished:
        masks = open_writer(masks_path, codec="ffv1")
        unfinished.callback(masks.abort)
        video = open_writer(path, codec="h264", bitrate=bitrate)
        unfinished.callback(video.abort)
        for index in range(frames):
            image, mask = draw_frame(story, index / max(1, frames - 1), width, height)
            video.write(finish(rng, image, 0.012), index / fps)
            masks.write(mask, index / fps)
            if progress is not None:
                progress(index + 1, frames)
        video.finish()
        masks.finish()
        _put_in_place(video, targets[0], overwrite)
        try:
            _put_in_place(masks, targets[1], overwrite)
        except InputError:
            if not overwrite:
                targets[0].unlink()  # the name was free: of two, one alone is of no use
            raise
    return masks_path


def _check_targets(path: Path, masks_path: Path, overwrite: bool) -> tuple[Path, Path]:
    """The two files that are meant, behind all links."""
    video, masks = (check_target(target, overwrite=overwrite) for target in (path, masks_path))
    if video == masks or (video.exists() and masks.exists() and os.path.samefile(video, masks)):
        raise InputError(f"{path} and {masks_path} are one file: give the masks another name")
    return video, masks


def _put_in_place(writer: VideoWriter, target: Path, overwrite: bool) -> None:
    try:
        put_in_place(writer.temporary, target, overwrite=overwrite)
    except OSError as error:
        raise InputError(f"{writer.path}: can't be put in place: {error.strerror or error}") from error


def _check_figures(width: int, height: int, frames: int, fps: float, bitrate: int, seed: int) -> None:
    for name, value, (low, high) in (
        ("width", width, SIDES),
        ("height", height, SIDES),
        ("frames", frames, (1, MAX_FRAMES)),
        ("fps", fps, RATES),
        ("bitrate", bitrate, BITRATES),
    ):
        _check_number(name, value, Real if name == "fps" else Integral)
        if not low <= value <= high:  # NaN too
            raise InputError(f"clip: {name} {value}: must be {low} to {high}")
    if width % 2 or height % 2:
        raise InputError(f"clip {width}x{height}: both sides must be even")
    _check_number("seed", seed, Integral)
    if seed < 0:
        raise InputError(f"clip: seed {seed}: must be 0 or more")


def _check_number(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        whole = "" if kind is Real else "whole "
        raise InputError(f"clip: {name} {brief(value)}: must be a {whole}number")
