"""Any picture a user may hand over -> one RGB tensor."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fasteomt.errors import InputError

Picture = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor


def open_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """Read an image file upright (EXIF orientation applied) as RGB.

    Raises:
        InputError: missing, or not an image.
    """
    if not Path(path).is_file():
        raise InputError(f"no such image: {path}: check the path")
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable image ({error})") from None


def as_rgb_tensor(picture: Picture) -> Tensor:
    """A path, PIL image, (H, W, 3) uint8 array or (3, H, W) tensor -> (3, H, W), uint8 or fp32 in [0, 1].

    Raises:
        InputError: another type, shape or dtype.
    """
    if isinstance(picture, str | os.PathLike):
        picture = open_rgb(picture)
    if isinstance(picture, Image.Image):
        picture = np.array(picture.convert("RGB"))
    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or 0 in picture.shape:
            raise InputError(
                f"array of shape {picture.shape} and dtype {picture.dtype}: expected RGB (H, W, 3) uint8"
            )
        return torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)
    if isinstance(picture, Tensor):
        if picture.dim() != 3 or picture.shape[0] != 3 or 0 in picture.shape:
            raise InputError(f"tensor of shape {tuple(picture.shape)}: expected RGB (3, H, W)")
        if picture.dtype != torch.uint8 and not picture.is_floating_point():
            raise InputError(f"tensor of dtype {picture.dtype}: expected uint8, or floating in [0, 1]")
        return picture
    raise InputError(
        f"can't read an image from {type(picture).__name__}: give a path, PIL image, RGB array or tensor"
    )
