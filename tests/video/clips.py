"""Small clips with a number in each frame's pixels, and a predictor that needs no model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch

from fasteomt.result import Result

BITS = 8


def picture(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """(height, width, 3) RGB: the number's bits as red columns in the upper half, highest bit left; green in
    the lower left corner, so that every turn and mirror image is another picture."""
    image = np.zeros((height, width, 3), np.uint8)
    for bit, (left, right) in enumerate(_columns(width)):
        if number >> (BITS - 1 - bit) & 1:
            image[: height // 2, left:right] = (255, 0, 0)
    image[height * 3 // 4 :, : width // 4] = (0, 255, 0)
    return image


def number_in(red: np.ndarray) -> int:
    """The number in a (height, width) red channel or mask (any positive value counts as red above 60)."""
    row = red[red.shape[0] // 4].astype(int)
    return sum(
        1 << (BITS - 1 - bit)
        for bit, (left, right) in enumerate(_columns(red.shape[1]))
        if row[min((left + right) // 2, len(row) - 1)] > 60
    )


def _columns(width: int) -> list[tuple[int, int]]:
    edges = [round(bit * width / BITS) for bit in range(BITS + 1)]
    return list(itertools.pairwise(edges))


def encode(
    path: Path,
    images: Iterable[np.ndarray],
    *,
    fps: Fraction | int = 25,
    pts: Sequence[float] | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    rotation: int | None = None,
    options: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    time_base: Fraction | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Write a clip with PyAV alone. `rotation`: degrees counter-clockwise of the display matrix."""
    base = time_base or (1 / Fraction(fps) if pts is None else Fraction(1, 90000))
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream: Any = None
        for index, image in enumerate(images):
            if stream is None:
                stream = container.add_stream(codec, rate=fps, options=options or {})
                stream.height, stream.width, stream.pix_fmt = *image.shape[:2], pix_fmt
                stream.codec_context.time_base = base
                if rotation is not None:
                    stream.set_display_rotation(rotation)
                stream.metadata.update(metadata or {})
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            seconds = index / Fraction(fps) if pts is None else Fraction(pts[index])
            frame.pts, frame.time_base = round(seconds / base), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def numbered(path: Path, count: int, width: int = 64, height: int = 48, **options: Any) -> Path:
    """A clip of `count` numbered pictures."""
    return encode(path, (picture(index, width, height) for index in range(count)), **options)


def zeroed(path: Path, target: Path, start: float, part: float = 0.1) -> Path:
    """A copy with `part` of the file, from its `start` part on, set to zero."""
    data = bytearray(path.read_bytes())
    first, size = int(len(data) * start), int(len(data) * part)
    data[first : first + size] = bytes(size)
    target.write_bytes(data)
    return target


def cut(path: Path, target: Path, part: float) -> Path:
    """A copy of the first `part` of the file."""
    data = path.read_bytes()
    target.write_bytes(data[: int(len(data) * part)])
    return target


class RedPredictor:
    """Calls every pixel red (class 1) whose red channel is above 60; remembers the frames' numbers."""

    def __init__(self, class_ids: Sequence[int] = (0, 1), fail_at: int | None = None) -> None:
        names = {class_id: f"class{class_id}" for class_id in class_ids}
        self.spec = SimpleNamespace(name="red", class_ids=tuple(class_ids), names=names)
        self.stack = SimpleNamespace(name="fp32")
        self.note: str | None = None
        self.device = torch.device("cpu")
        self.source = "threshold"
        self.fail_at = fail_at
        self.seen: list[int] = []

    def predict_rgb(self, frame: np.ndarray, pts: float | None = None) -> Result:
        if len(self.seen) == self.fail_at:
            raise RuntimeError("out of luck")
        self.seen.append(number_in(frame[..., 0]))
        first, second = self.spec.class_ids[0], self.spec.class_ids[-1]
        dtype = np.uint8 if max(self.spec.class_ids) <= 255 else np.uint16
        mask = np.where(frame[..., 0] > 60, second, first).astype(dtype)
        areas = {class_id: int((mask == class_id).sum()) for class_id in self.spec.class_ids}
        confidence = {class_id: 0.75 for class_id, area in areas.items() if area}
        return Result(mask, self.spec.names, areas, confidence, pts)


def read_overlay(path: Path) -> list[tuple[float, np.ndarray]]:
    """Times in seconds and (H, W, 3) frames of an overlay."""
    with av.open(str(path)) as container:
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
