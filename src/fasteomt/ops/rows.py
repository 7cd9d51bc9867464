"""Where tokens lie: the rows of the matrices that a model's blocks work on.

A crop's tokens are consecutive rows, patches in raster order and extras (class token, registers, and in joint
blocks the queries). Even crops have their patches first, odd crops their extras first, so that the extras of
two crops are neighbours: for two crops of 32 x 32 patches and 5 extras, rows are 1024 patches, 5 + 5 extras,
1024 patches. Tiles of 128 rows then cover all patches without a remainder, and one small tile the rest.
Attention doesn't mind the order of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """`crops`, each of `patches` and `extras` tokens."""

    crops: int
    patches: int
    extras: int

    @property
    def tokens(self) -> int:
        """Of one crop."""
        return self.patches + self.extras

    @property
    def total(self) -> int:
        return self.crops * self.tokens

    def patch_start(self, crop: int) -> int:
        """The row of a crop's first patch; the others follow."""
        return crop * self.tokens + (self.extras if crop % 2 else 0)

    def extra_start(self, crop: int) -> int:
        """The row of a crop's first extra token; the others follow."""
        return crop * self.tokens + (0 if crop % 2 else self.patches)

    def patch_of_row(self) -> Tensor:
        """(total,) int64: for each row the index of its patch within the crop, or -1 for an extra."""
        out = torch.full((self.total,), -1, dtype=torch.int64)
        for crop in range(self.crops):
            start = self.patch_start(crop)
            out[start : start + self.patches] = torch.arange(self.patches)
        return out
