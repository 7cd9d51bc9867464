"""Image files as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fasteomt.errors import InputError
from fasteomt.images import open_rgb
from fasteomt.video.prefetch import Prefetch
from fasteomt.video.source import Frame, Selection, Source, check_picture

# Images are large and of any size: one is read while one is worked on.
_AHEAD = 1


class ImageSource(Source):
    """Images, in order, each of its own size; EXIF orientation applied.

    An image that can't be used is skipped and is a problem. The first one that can is read at once, so that
    a source without any is refused here.

    Raises:
        InputError: a selection in seconds, or no image that can be used.
    """

    kind: Literal["video", "images"] = "images"

    def __init__(self, paths: Sequence[Path], name: str, location: str, selection: Selection) -> None:
        if selection.start is not None or selection.end is not None:
            raise InputError(f"{location}: images have no times: leave --start and --end out")
        self.name, self.location = name, location
        self._paths = list(paths)[:: selection.stride]
        self._names = output_names(self._paths)
        self.count = len(self._paths)
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._prefetch: Prefetch[Frame] | None = None
        self._frames = self._read()
        first = next(self._frames, None)
        if first is None:
            raise InputError(self._why_empty())
        self._first = first
        self.height, self.width = first.rgb.shape[:2]

    def __iter__(self) -> Iterator[Frame]:
        self._prefetch = Prefetch(self._frames, _AHEAD)
        yield self._first
        yield from self._prefetch

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()

    def _read(self) -> Iterator[Frame]:
        for path, name in zip(self._paths, self._names, strict=True):
            try:
                rgb = np.array(open_rgb(path))
                check_picture(rgb, path)
            except InputError as error:
                self.skipped += 1
                self.problems.append(str(error))
                continue
            self.decoded += 1
            yield Frame(self.decoded - 1, None, rgb, name)

    def _why_empty(self) -> str:
        if len(self._paths) == 1:
            return self.problems[0]
        return f"{self.location}: none of {len(self._paths)} images can be used (first: {self.problems[0]})"


def output_names(paths: Sequence[Path]) -> list[str]:
    """A stem for each image's output files, no two the same, even where case doesn't count.

    The images' own stems; their whole names if stems are shared; if even these are, numbered ones.
    """
    numbered = [f"{index:06d}-{path.name}" for index, path in enumerate(paths)]
    choices = ([path.stem for path in paths], [path.name for path in paths], numbered)
    return next(names for names in choices if len({name.casefold() for name in names}) == len(names))
