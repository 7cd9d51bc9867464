"""What frames come from: one interface over video files and images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np

from fasteomt.errors import InputError

Spec = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Frame:
    """One picture of a source, upright and in RGB.

    `index`: place in the source's output, from 0; `pts`: seconds since the start of the video, None for
    images; `rgb`: (H, W, 3) uint8; `name`: stem of its video file, or of the image's output files.
    """

    index: int
    pts: float | None
    rgb: np.ndarray
    name: str


def check_picture(rgb: np.ndarray, path: Path) -> None:
    """Check that a picture of a file has a shape that a model can take.

    Args:
        rgb: (H, W, 3).

    Raises:
        InputError: as `check_frame`, with the file's name.
    """
    # torch takes seconds to import, and what is found wrong before this needn't wait for it.
    from fasteomt.model.tiling import check_frame

    try:
        check_frame(*rgb.shape[:2])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


class Source(ABC):
    """Frames in order, once. A context manager; closing it early is fine.

    `name` is the output folder's; `width` and `height` are the first frame's, as shown; `fps` is nominal and
    `duration` (seconds) and `count` (frames) are expectations from headers, each None if unknown. `decoded`
    and `skipped` count frames. `problems` says what was lost and `notes` what was repaired or assumed, each
    complete when the iteration is over.
    """

    kind: Literal["video", "images"]
    name: str
    location: str
    width: int
    height: int
    fps: Fraction | None = None
    duration: float | None = None
    count: int | None = None
    decoded: int = 0
    skipped: int = 0
    problems: list[str]
    notes: list[str]

    @abstractmethod
    def __iter__(self) -> Iterator[Frame]: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


# What FFmpeg's 64-bit timestamps and Python's iterators can take, with room to spare.
MAX_SECONDS = 10**9
MAX_STRIDE = 10**9


@dataclass(frozen=True)
class Selection:
    """Which frames: shown at `start` or later and before `end` (seconds), and every `stride`-th of these."""

    start: float | None = None
    end: float | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= MAX_STRIDE:
            raise InputError(f"stride {self.stride}: must be 1 to {MAX_STRIDE}")
        if self.start is not None and not 0 <= self.start <= MAX_SECONDS:
            raise InputError(f"start {self.start}: must be 0 to {MAX_SECONDS} seconds")
        if self.end is not None and not (self.start or 0) < self.end:
            raise InputError(f"end {self.end}: must be after start, {self.start or 0} s")


def open_source(spec: Spec, start: float | None = None, end: float | None = None, stride: int = 1) -> Source:
    """Open a video file, a folder of videos or of images, an image, a glob, or a list of these.

    Several videos become one source, one after the other, with times that go on rising. All images together
    are one source.

    Args:
        spec: path, glob or list.
        start, end: seconds since the start of the video; the frame at `end` is not included.
        stride: take every stride-th frame.

    Raises:
        InputError: nothing there, not a video or image, or nothing within start and end.
    """
    from fasteomt.video.inputs import find_inputs, open_input

    selection = Selection(start, end, stride)
    inputs = find_inputs(spec)
    if len(inputs) == 1:
        return open_input(inputs[0], selection)
    return _Chain([open_input(one, selection) for one in inputs])


class _Chain(Source):
    """Sources one after the other."""

    kind: Literal["video", "images"] = "video"

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources
        first = sources[0]
        self.name, self.location = first.name, first.location
        self.width, self.height, self.fps = first.width, first.height, first.fps
        durations = [source.duration for source in sources if source.duration is not None]
        self.duration = sum(durations) if len(durations) == len(sources) else None

    def __iter__(self) -> Iterator[Frame]:
        index, offset = 0, 0.0
        for source in self._sources:
            last = offset
            with source:
                for frame in source:
                    pts = None if frame.pts is None else offset + frame.pts
                    yield Frame(index, pts, frame.rgb, frame.name)
                    index += 1
                    last = last if pts is None else pts
            offset = last + float(1 / (source.fps or 25))

    @property
    def decoded(self) -> int:  # type: ignore[override]
        return sum(source.decoded for source in self._sources)

    @property
    def skipped(self) -> int:  # type: ignore[override]
        return sum(source.skipped for source in self._sources)

    @property
    def problems(self) -> list[str]:  # type: ignore[override]
        return [f"{source.location}: {text}" for source in self._sources for text in source.problems]

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        return [f"{source.location}: {text}" for source in self._sources for text in source.notes]

    def close(self) -> None:
        for source in self._sources:
            source.close()
