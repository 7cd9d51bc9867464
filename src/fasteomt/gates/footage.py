"""The clip that gates run on: frames, true masks where there are any, and what identifies both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from fasteomt.errors import InputError
from fasteomt.files import require_file
from fasteomt.model.spec import ModelSpec
from fasteomt.video.inputs import Input, find_inputs, open_input
from fasteomt.video.sink import read_masks
from fasteomt.video.source import Frame, Selection

# Of the clip that is made where the user has none.
WIDTH, HEIGHT, FRAMES, FPS, BITRATE, SEED = 640, 480, 48, 12.0, 2_000_000, 11
_TRUE_HEAD = 1  # in the generator's masks; 0 is the background


@dataclass(frozen=True)
class Footage:
    """One video, or the images of one folder.

    `sha256`: of the file, as `sha256sum` prints it; of images, over the digests of all, in order.
    `truth_ids`: true id -> the model's id, None where they are the same.
    """

    source: Input
    sha256: str
    truth: Path | None = None
    truth_sha256: str | None = None
    truth_ids: dict[int, int] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.source.paths, *([self.truth] if self.truth is not None else []))

    def frames(self) -> Iterator[tuple[Frame, np.ndarray | None]]:
        """Frames in order, each with its true mask, (H, W) class ids of the model, read when asked for.

        Raises:
            InputError: frames were lost in the source, or there are more or fewer true masks than frames.
        """
        with open_input(self.source, Selection()) as source:
            if self.truth is None:
                yield from zip(source, repeat(None))
            else:
                with closing(read_masks(self.truth)) as masks:  # type: ignore[type-var]
                    yield from self._paired(iter(source), masks)
            if source.problems:
                raise InputError(f"{source.location}: {source.problems[0]}: gates need a whole clip")

    def expected_frames(self) -> int | None:
        """As the headers have it, for progress alone."""
        with open_input(self.source, Selection()) as source:
            if source.count:
                return source.count
            return round(source.duration * source.fps) if source.duration and source.fps else None

    def _paired(
        self, frames: Iterator[Frame], masks: Iterator[tuple[float, np.ndarray]]
    ) -> Iterator[tuple[Frame, np.ndarray]]:
        count = 0
        for frame in frames:
            found = next(masks, None)
            if found is None:
                raise InputError(f"{self.truth}: {count} true masks for more frames: give those of this clip")
            yield frame, self._model_ids(found[1])
            count += 1
        if next(masks, None) is not None:
            raise InputError(f"{self.truth}: more true masks than {count} frames: give those of this clip")

    def _model_ids(self, mask: np.ndarray) -> np.ndarray:
        if self.truth_ids is None:
            return mask
        out = np.zeros(mask.shape, np.int64)
        for true, own in self.truth_ids.items():
            out[mask == true] = own
        return out


def open_footage(video: str | Path, truth: Path | None = None) -> Footage:
    """A user's own clip.

    Args:
        video: a video, an image folder or a glob, if it stands for one input.
        truth: masks.mkv with the model's class ids, one a frame.

    Raises:
        InputError: not one input, or a file can't be read.
    """
    found = find_inputs(video)
    if len(found) != 1:
        raise InputError(f"{video}: {len(found)} inputs: run a gate on one clip at a time")
    if truth is not None:
        require_file(truth)
    return Footage(found[0], _digest(found[0].paths), truth, _digest([truth]) if truth is not None else None)


def make_footage(
    folder: Path, spec: ModelSpec, progress: Callable[[int, int], None] | None = None
) -> Footage:
    """A short generated clip of heads, written into `folder`; with its true masks for a model that has the
    classes 'head' and one other, without for all others.

    Raises:
        UnsupportedError: an encoder or the package of the photos is missing.
    """
    from fasteomt.data.clip import write_clip

    path = folder / "generated.mp4"
    masks = write_clip(
        path,
        width=WIDTH,
        height=HEIGHT,
        frames=FRAMES,
        fps=FPS,
        bitrate=BITRATE,
        seed=SEED,
        progress=progress,
    )
    heads = [class_id for class_id, name in spec.names.items() if name == "head"]
    others = [class_id for class_id in spec.class_ids if class_id not in heads]
    (source,) = find_inputs(path)
    if len(heads) != 1 or len(others) != 1:
        return Footage(source, _digest([path]))
    ids = {_TRUE_HEAD: heads[0], 0: others[0]}
    return Footage(source, _digest([path]), masks, _digest([masks]), ids)


def _digest(paths: Sequence[Path]) -> str:
    digests = []
    for path in paths:
        try:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror or error}") from None
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
