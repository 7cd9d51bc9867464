"""Rotary positions, in place: turn the pairs of the first columns of qkv, in rows that are patches.

`run(qkv, rotation, rotated, rows)`: qkv (rows.total, width); of its columns the first `rotated`, a multiple
of head_dim (queries and keys), hold pairs (2i, 2i + 1), which are turned as `ops.rotation.Rotation` says.
Rows of extra tokens and the other columns stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fasteomt.ops.rows import Rows

IMPLEMENTATIONS: tuple[str, ...] = ("reference", "fused")


@dataclass(frozen=True)
class Problem:
    """`width`: columns of qkv; `dtype`: of qkv."""

    rows: Rows
    width: int
    head_dim: int
    dtype: torch.dtype
