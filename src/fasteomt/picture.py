"""Every kind of picture that a program may hold -> one kind of tensor."""

from __future__ import annotations

import os

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fasteomt.errors import InputError, brief, one_line
from fasteomt.images import open_rgb, opened_rgb

Picture = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor

# How far past 0 and 1 rounding, in 16-bit types too, may put a value.
_ROUNDING = 2**-8


def rgb_tensor(picture: Picture) -> Tensor:
    """A path, PIL image, (H, W, 3) uint8 array or (3, H, W) tensor -> (3, H, W), uint8 or fp32 in [0, 1].

    Raises:
        InputError: no readable image, or another type, shape, dtype or range of values.
    """
    if isinstance(picture, str | os.PathLike):
        picture = _open(picture)
    if isinstance(picture, Image.Image):
        picture = np.array(opened_rgb(picture))
    if isinstance(picture, np.ndarray):
        return _of_array(picture)
    if isinstance(picture, Tensor):
        return _of_tensor(picture)
    raise InputError(
        f"can't read an image from {type(picture).__name__}: give a path, PIL image, RGB array or tensor"
    )


def _open(path: str | os.PathLike[str]) -> Image.Image:
    try:
        return open_rgb(path)
    except ValueError as error:  # a name that no file can have
        raise InputError(f"{brief(path)}: {one_line(error)}: check the path") from None


def _of_array(array: np.ndarray) -> Tensor:
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or 0 in array.shape:
        raise InputError(
            f"array of shape {array.shape} and dtype {array.dtype}: expected RGB (H, W, 3) uint8"
        )
    # torch warns about memory that it may not write to, though nothing here does: such arrays are copied.
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).permute(2, 0, 1)


def _of_tensor(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        raise InputError(f"{_kind(tensor)} tensor: expected a dense one, with its values in memory")
    if tensor.dim() != 3 or tensor.shape[0] != 3 or 0 in tensor.shape:
        raise InputError(f"tensor of shape {tuple(tensor.shape)}: expected RGB (3, H, W)")
    if tensor.dtype == torch.uint8:
        return tensor
    if not tensor.is_floating_point():
        raise InputError(f"tensor of dtype {tensor.dtype}: expected uint8, or floating in [0, 1]")
    try:
        values = tensor.detach().float()
    except NotImplementedError:  # 4-bit types, of which torch only has the name
        raise InputError(
            f"tensor of dtype {tensor.dtype}: expected uint8, or fp32 or fp16 in [0, 1]"
        ) from None
    low, high = (one.item() for one in values.aminmax())
    # In this form NaN, which is neither below nor above anything, is refused too.
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise InputError(f"tensor of values {low:g} to {high:g}: expected floating in [0, 1], or uint8")
    return values


def _kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    return "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
