"""Image files as a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fasteomt.errors import InputError
from fasteomt.images import image_size, open_rgb
from fasteomt.video.prefetch import Prefetch
from fasteomt.video.source import Frame, Selection, Source

# Images are large and of any size: one is read while one is worked on.
_AHEAD = 1


class ImageSource(Source):
    """Images, in order, each of its own size; EXIF orientation applied.

    A file that can't be read is skipped and is a problem; if it is the only one, it is an error.

    Raises:
        InputError: a selection in seconds, or a single image that can't be read.
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
        self.width, self.height = self._first_size()

    def __iter__(self) -> Iterator[Frame]:
        self._prefetch = Prefetch(self._read(), _AHEAD)
        yield from self._prefetch

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()

    def _first_size(self) -> tuple[int, int]:
        """Size of the first image that looks like one."""
        for path in self._paths:
            try:
                height, width = image_size(path, upright=True)
            except InputError as error:
                problem = error
            else:
                return width, height
        raise problem

    def _read(self) -> Iterator[Frame]:
        for path, name in zip(self._paths, self._names, strict=True):
            try:
                image = open_rgb(path)
            except InputError as error:
                if len(self._paths) == 1:
                    raise
                self.skipped += 1
                self.problems.append(str(error))
                continue
            self.decoded += 1
            yield Frame(self.decoded - 1, None, np.array(image), name)


def output_names(paths: Sequence[Path]) -> list[str]:
    """Stems for output files: the image's own, or its whole name where several share the stem."""
    stems = Counter(path.stem.casefold() for path in paths)
    return [path.stem if stems[path.stem.casefold()] == 1 else path.name for path in paths]
