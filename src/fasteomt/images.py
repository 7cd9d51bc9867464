"""Image files -> pixels: whole or not at all, whatever their mode."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps

from fasteomt.errors import InputError, one_line
from fasteomt.files import require_file

# What Pillow raises for files that aren't whole images of a bearable size.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
_FLAG = threading.Lock()


def open_rgb(path: str | os.PathLike[str], *, upright: bool = True) -> Image.Image:
    """Read an image file as 8-bit RGB, upright (EXIF orientation applied) or as it is stored.

    Raises:
        InputError: missing, not a whole image, or of a mode that `to_rgb` refuses.
    """
    image = read_image(path, upright=upright)
    try:
        return to_rgb(image)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_image(path: str | os.PathLike[str], *, upright: bool = False) -> Image.Image:
    """A whole image in memory, in the file's own mode; `upright` applies its EXIF orientation.

    Raises:
        InputError: missing, not an image, or cut short.
    """
    with _readable(path), _whole_or_not_at_all(), Image.open(path) as image:
        image.load()
        return ImageOps.exif_transpose(image) if upright else image


def opened_rgb(image: Image.Image) -> Image.Image:
    """An image that the caller opened, its pixels perhaps still unread, as 8-bit RGB.

    Raises:
        InputError: without pixels, not a whole image, or of a mode that `to_rgb` refuses.
    """
    if 0 in image.size:
        raise InputError(f"image of {image.width} x {image.height} pixels: there is nothing in it")
    try:
        with _whole_or_not_at_all():
            image.load()
    except Exception as error:  # of a closed file, also what Pillow asserts
        raise InputError(f"PIL image: not readable ({one_line(error)}): open it again") from None
    return to_rgb(image)


def image_size(path: str | os.PathLike[str], *, upright: bool = False) -> tuple[int, int]:
    """(height, width) of an image file from its header: as stored, or with its EXIF orientation applied.

    Raises:
        InputError: missing, or not an image.
    """
    with _readable(path), Image.open(path) as image:
        # From 5 on, orientations swap the sides.
        if upright and image.getexif().get(ExifTags.Base.Orientation, 1) >= 5:
            return image.width, image.height
        return image.height, image.width


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as 8-bit RGB: 16-bit grey is scaled, transparency is dropped.

    Raises:
        InputError: a mode whose white isn't known: floating point, or integers outside 0 to 65535; or one
            that Pillow can't convert.
    """
    if image.mode.startswith("I"):
        # Pillow clips at 255 instead of scaling; and 32-bit integers are how it may hold 16-bit files.
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 65535:
            raise InputError(
                f"integers from {grey.min()} to {grey.max()} have no known white: save 8 or 16 bits"
            )
        # 65535 / 255 is 257; to the nearest.
        return Image.fromarray(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise InputError("floating-point pixels have no known white: save 8 or 16 bits")
    try:
        if image.mode == "La":
            image = image.convert("LA")  # the only way that Pillow has
        elif "transparency" in image.info:
            # In two steps, or Pillow warns about palettes with several transparent colours.
            image = image.convert("RGBA")
        return image.convert("RGB")
    except (ValueError, TypeError) as error:  # the latter of transparency that isn't the mode's
        raise InputError(f"mode {image.mode}: no way to RGB ({one_line(error)}): convert it first") from None


@contextmanager
def _readable(path: str | os.PathLike[str]) -> Iterator[None]:
    require_file(path)
    try:
        yield
    except _UNREADABLE as error:
        raise InputError(f"{path}: not a readable image ({one_line(error)}): replace it") from None


@contextmanager
def _whole_or_not_at_all() -> Iterator[None]:
    """Refuse files that are cut short, also where Pillow is told to fill up what is missing.

    Importing LightlyTrain tells it so, for the whole process; a half-read mask would be a wrong mask. The
    lock keeps another thread from taking this pause for the setting to go back to.
    """
    with _FLAG:
        lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = lenient
