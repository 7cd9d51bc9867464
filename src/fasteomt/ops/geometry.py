"""Where a frame's crops lie, as kernels read it: from device memory, so that a new frame size needs no new
CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.errors import InputError

# Entries of a table before the crops' starts: height, width, resized height, resized width, axis, crops.
HEAD = 6


@dataclass(frozen=True)
class Geometry:
    """`height`, `width`: the frame's size, pixels; `resized`: (height, width) after resizing; `starts`: the
    crops' offsets along the long side, in resized pixels, ascending, no pixel in more than two crops; `axis`:
    0 if that side is vertical, else 1."""

    height: int
    width: int
    resized: tuple[int, int]
    starts: tuple[int, ...]
    axis: int

    def table(self, max_crops: int) -> Tensor:
        """[height, width, resized height, resized width, axis, number of crops, starts..., zeros]: int32
        (HEAD + max_crops,), on the host.

        Raises:
            InputError: more crops than `max_crops`.
        """
        crops = len(self.starts)
        if crops > max_crops:
            raise InputError(f"table: {crops} crops, room for {max_crops}: make room for more")
        unused = [0] * (max_crops - crops)
        head = [self.height, self.width, *self.resized, self.axis, crops]
        return torch.tensor([*head, *self.starts, *unused], dtype=torch.int32)
