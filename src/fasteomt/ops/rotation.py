"""Rotary positions in the form that kernels take them.

The reference model rotates feature d of a head together with d + D/2. Kernels want the two beside one
another, in one thread's registers. Scores don't change when the features of all queries and keys are
reordered alike, so packing reorders the rows of their weights once: pair i becomes features 2i and 2i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """sin and cos, each (patches, head_dim / 2) fp32: by how much pair i of a patch's query or key is turned.

    Pair (a, b) becomes (a cos - b sin, b cos + a sin). Extra tokens aren't turned.
    """

    sin: Tensor
    cos: Tensor

    @classmethod
    def of(cls, tables: tuple[Tensor, Tensor]) -> Rotation:
        """From `model.reference.rope_tables`, (patches, head_dim), whose second half repeats the first."""
        sin, cos = (table.chunk(2, dim=1)[0].contiguous() for table in tables)
        return cls(sin, cos)


def interleave(rows: Tensor, heads: int) -> Tensor:
    """Reorder the features of a query or key projection, (heads * D, ...), so that pairs are neighbours."""
    first, second = rows.unflatten(0, (heads, 2, -1)).unbind(1)
    return torch.stack([first, second], dim=2).flatten(0, 2)
