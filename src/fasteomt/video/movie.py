"""A video file as a source."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import av
import numpy as np

from fasteomt.errors import InputError, PartialResultError
from fasteomt.video.color import RgbConverter
from fasteomt.video.decode import VideoDecoder
from fasteomt.video.prefetch import Prefetch
from fasteomt.video.rotation import apply_matrix, display_matrix
from fasteomt.video.source import Frame, Selection, Source, check_picture

# Decoded frames that wait for the consumer at most.
QUEUE_FRAMES = 4


class VideoSource(Source):
    """The frames of one video file, decoded ahead in a thread.

    The first frame is decoded at once, so that a file that gives none is refused here.

    Raises:
        InputError: not a video, no frame in it that can be decoded, none within the selection, or frames too
            long and thin for a model.
    """

    kind: Literal["video", "images"] = "video"

    def __init__(self, path: Path, name: str, selection: Selection) -> None:
        self.name, self.location = name, str(path)
        self._path = path
        self._selection = selection
        self._decoder = VideoDecoder(path)
        self._to_rgb = RgbConverter()
        self._prefetch: Prefetch[Frame] | None = None
        self._frames = self._selected()
        try:
            first = next(self._frames, None)
            if first is None:
                raise InputError(f"{path}: {self._why_empty()}")
            check_picture(first.rgb, path)
        except BaseException:
            self.close()
            raise
        self._first = first
        self.height, self.width = first.rgb.shape[:2]
        self.fps = self._decoder.rate / selection.stride if self._decoder.rate else None
        self.duration = self._expected_duration()

    def __iter__(self) -> Iterator[Frame]:
        # The queue and the item in the producer's hands together are QUEUE_FRAMES.
        self._prefetch = Prefetch(self._frames, QUEUE_FRAMES - 1)
        yield self._first
        yield from self._prefetch

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
        else:
            self._frames.close()
        self._decoder.close()

    @property
    def decoded(self) -> int:  # type: ignore[override]
        return self._decoder.decoded

    @property
    def skipped(self) -> int:  # type: ignore[override]
        return self._decoder.skipped

    @property
    def problems(self) -> list[str]:  # type: ignore[override]
        return self._decoder.problems

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        return self._decoder.notes + self._to_rgb.notes

    def _selected(self) -> Generator[Frame, None, None]:
        start = self._selection.start or 0.0
        end = self._selection.end
        size: tuple[int, int] | None = None
        with closing(self._decoder.frames(start)) as frames:
            shown = itertools.takewhile(lambda item: end is None or float(item[0]) < end, frames)
            chosen = itertools.islice(shown, 0, None, self._selection.stride)
            for index, (seconds, decoded) in enumerate(chosen):
                rgb = self._picture(decoded)
                size = size or rgb.shape[:2]
                if rgb.shape[:2] != size:
                    raise PartialResultError(
                        f"{self._path}: frame {index} is {rgb.shape[1]}x{rgb.shape[0]}, those before are "
                        f"{size[1]}x{size[0]}: split the file there, at {float(seconds):.3f} s"
                    )
                yield Frame(index, float(seconds), rgb, self.name)

    def _picture(self, frame: av.VideoFrame) -> np.ndarray:
        rgb = self._to_rgb(frame)
        matrix = display_matrix(frame)
        return rgb if matrix is None else apply_matrix(rgb, matrix)

    def _why_empty(self) -> str:
        start = self._selection.start
        if start and self._decoder.decoded:
            return f"there is no frame from {start:g} s on: choose an earlier --start"
        return f"no frame could be decoded ({'; '.join(self._decoder.problems) or 'the stream is empty'})"

    def _expected_duration(self) -> float | None:
        whole, start, end = self._decoder.duration, self._selection.start or 0.0, self._selection.end
        if end is not None:
            return (end if whole is None else min(end, whole)) - start
        return None if whole is None else max(0.0, whole - start)
