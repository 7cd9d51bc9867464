"""Where pixels lie: the rows of the matrices that the upscaling works on.

A ConvTranspose of 2 x 2 pixels with stride 2 is one matrix product, (rows, C) @ (4 C, C)^T; its result viewed
as (4 * rows, C) has the four pixels that a pixel became in consecutive rows: upper left, upper right, lower
left, lower right. That order, applied once for each level, is kept until the mask logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """`crops`, each of `side` x `side` patches, after `level` doublings of the resolution."""

    crops: int
    side: int
    level: int

    @property
    def resolution(self) -> int:
        """Pixels a side of one crop."""
        return self.side << self.level

    @property
    def pixels(self) -> int:
        """Of all crops: the number of rows."""
        return self.crops * self.resolution**2

    def row(self, crop: int, y: int, x: int) -> int:
        """The row of a pixel, 0 <= y, x < resolution."""
        row = (crop * self.side + (y >> self.level)) * self.side + (x >> self.level)
        for bit in reversed(range(self.level)):
            row = 4 * row + 2 * (y >> bit & 1) + (x >> bit & 1)
        return row

    def in_row_order(self, images: Tensor) -> Tensor:
        """A view of (..., resolution, resolution) with elements in the order of rows.

        Returns:
            (..., side, side, 2, 2, ...), a pair of axes for each level; its last 2 + 2 * level axes,
            flattened, count the rows of one crop.
        """
        halves = [2] * self.level
        lead = images.dim() - 2
        split = images.unflatten(-1, (self.side, *halves)).unflatten(lead, (self.side, *halves))
        ys = range(lead, lead + 1 + self.level)
        pairs = [axis for y in ys for axis in (y, y + 1 + self.level)]
        return split.permute(*range(lead), *pairs)

    def raster(self) -> Tensor:
        """(pixels,) int64: for each row (crop * resolution + y) * resolution + x of its pixel."""
        indices = torch.arange(self.pixels).view(self.crops, self.resolution, self.resolution)
        return self.in_row_order(indices).flatten()
