"""What is written for a source: masks, overlay and areas, each under a temporary name until `commit`."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from fasteomt.draw import draw_overlay
from fasteomt.errors import FastEomtError, InputError, UnsupportedError
from fasteomt.files import put_in_place, require_file, temporary_beside
from fasteomt.ids import id_dtype
from fasteomt.result import Result
from fasteomt.video.source import Frame
from fasteomt.video.write import VideoWriter

AREA_COLUMNS = ("frame", "pts", "class_id", "class", "pixels", "share", "confidence")


class Sink(ABC):
    """One output. `write` for each frame, then `finish`, then `commit` to give it its name.

    Args:
        target: final path, in a folder that exists.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.temporary = temporary_beside(target)

    @abstractmethod
    def write(self, frame: Frame, result: Result) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Bring everything to the disk. The output is complete under its temporary name then."""

    def readable(self) -> bool:
        """Whether what was written can be used although `finish` failed, as on a full disk."""
        return False

    def commit(self, target: Path) -> None:
        """Take the name `target`, in place of what has it."""
        put_in_place(self.temporary, target)

    def discard(self) -> None:
        """Remove what was written."""
        if self.temporary.is_dir():
            shutil.rmtree(self.temporary, ignore_errors=True)
        else:
            self.temporary.unlink(missing_ok=True)


class MaskSink(Sink):
    """Class ids as a lossless FFV1 video in Matroska: gray for ids to 255, gray16le for ids to 65535.

    Frames have the source's size; times are rounded to milliseconds, the container's unit (areas.csv has them
    exactly). `read_masks` reads it back.
    """

    def __init__(
        self, target: Path, width: int, height: int, fps: Fraction | None, class_ids: Sequence[int]
    ) -> None:
        super().__init__(target)
        self._dtype = mask_dtype(class_ids)
        pix_fmt = "gray" if self._dtype == np.uint8 else "gray16le"
        self._writer = VideoWriter(target, width, height, fps, "ffv1", pix_fmt=pix_fmt, overwrite=True)
        self.temporary = self._writer.temporary

    def write(self, frame: Frame, result: Result) -> None:
        self._writer.write(result.mask.astype(self._dtype, copy=False), frame.pts)

    def finish(self) -> None:
        self._writer.finish()

    def readable(self) -> bool:
        # Matroska needs no trailer: the frames until the failure are there.
        try:
            return next(read_masks(self.temporary), None) is not None
        except InputError:
            return False

    def discard(self) -> None:
        self._writer.abort()


class OverlaySink(Sink):
    """Frames with the classes tinted, as H.264 (yuv420p, BT.709, index first): plays in a browser."""

    def __init__(self, target: Path, width: int, height: int, fps: Fraction | None) -> None:
        super().__init__(target)
        self._writer = VideoWriter(target, width, height, fps, "h264", overwrite=True)
        self.temporary = self._writer.temporary

    def write(self, frame: Frame, result: Result) -> None:
        self._writer.write(_overlay(frame, result), frame.pts)

    def finish(self) -> None:
        self._writer.finish()

    def discard(self) -> None:
        self._writer.abort()


class _PngFolder(Sink):
    """One PNG a frame: named by its number for videos, as the image for images."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.temporary.mkdir()

    def _save(self, frame: Frame, pixels: np.ndarray) -> None:
        name = f"{frame.index:06d}" if frame.pts is not None else frame.name
        # Little compression: it costs more time than the frame, and masks shrink anyway. The format is named
        # because Pillow sees no suffix in '..png'.
        Image.fromarray(pixels).save(self.temporary / f"{name}.png", format="PNG", compress_level=1)

    def finish(self) -> None:
        pass


class MaskPngSink(_PngFolder):
    """Class ids as PNG files, 8-bit for ids to 255, 16-bit for ids to 65535."""

    def __init__(self, target: Path, class_ids: Sequence[int]) -> None:
        self._dtype = mask_dtype(class_ids)
        super().__init__(target)

    def write(self, frame: Frame, result: Result) -> None:
        self._save(frame, result.mask.astype(self._dtype, copy=False))


class OverlayPngSink(_PngFolder):
    """Overlays as PNG files."""

    def write(self, frame: Frame, result: Result) -> None:
        self._save(frame, _overlay(frame, result))


class AreasSink(Sink):
    """CSV with a row for each frame and class, absent classes too.

    Columns: frame (its number from 0; for images their name), pts (seconds, empty for images), class_id,
    class, pixels, share (of the frame's pixels), confidence (empty where the class is absent).
    """

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        # Images are named by their files, whose names may hold bytes that are no text.
        self._file = self.temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace")
        self._rows = csv.writer(self._file)
        self._rows.writerow(AREA_COLUMNS)

    def write(self, frame: Frame, result: Result) -> None:
        label = frame.index if frame.pts is not None else frame.name
        pts = "" if frame.pts is None else f"{frame.pts:.6f}"
        for class_id, name in result.names.items():
            pixels = result.areas.get(class_id, 0)
            confidence = result.confidence.get(class_id)
            self._rows.writerow(
                (
                    label,
                    pts,
                    class_id,
                    name,
                    pixels,
                    f"{pixels / result.mask.size:.6f}",
                    "" if confidence is None else f"{confidence:.6f}",
                )
            )

    def finish(self) -> None:
        self._file.close()

    def readable(self) -> bool:
        # A full disk may have cut the last row, and there may be none before it.
        try:
            content = self.temporary.read_bytes()
            whole = content.rfind(b"\n") + 1
            os.truncate(self.temporary, whole)
        except OSError:
            return False
        return content[:whole].count(b"\n") > 1

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # what can't be written any more is not wanted either
            self._file.close()
        super().discard()


def mask_dtype(class_ids: Sequence[int]) -> np.dtype:
    """The smallest unsigned type that holds all ids.

    Raises:
        UnsupportedError: a negative id, or one past 65535, for which images have no format.
    """
    dtype = id_dtype(class_ids)
    if dtype == np.int32:
        outside = next(class_id for class_id in class_ids if not 0 <= class_id <= 65535)
        raise UnsupportedError(
            f"class id {outside} does not fit a 16-bit mask: leave masks out with --save overlay,areas"
        )
    return dtype


def read_masks(path: str | Path) -> Iterator[tuple[float, np.ndarray]]:
    """Read a `masks.mkv`: yields (pts in seconds, (H, W) uint8 or uint16 class ids), in order.

    Raises:
        InputError: missing, not a regular file, or not a mask video.
    """
    require_file(path)
    try:
        with av.open(f"file:{path}") as container:
            if not container.streams.video:
                raise InputError(f"{path}: not a mask video")
            for frame in container.decode(container.streams.video[0]):
                if frame.format.name not in ("gray", "gray16le"):
                    raise InputError(f"{path}: not a mask video, its pixels are {frame.format.name}")
                yield float(frame.time), frame.to_ndarray()
    except (OSError, av.error.FFmpegError) as error:
        raise InputError(f"{path}: not a readable mask video ({error.strerror})") from None


def _overlay(frame: Frame, result: Result) -> np.ndarray:
    if result.mask.shape != frame.rgb.shape[:2]:
        raise FastEomtError(f"frame {frame.index}: mask is {result.mask.shape}, frame {frame.rgb.shape[:2]}")
    return draw_overlay(frame.rgb, result.mask, tuple(result.names), result.names)
