"""Rotary positions by their definition."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.ops.rope import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(qkv: Tensor, rotation: Rotation, rotated: int, rows: Rows) -> None:
    """Turn qkv (rows.total, width) in place; fp32 inside, rounded once."""
    sin, cos = rotation.sin[:, None], rotation.cos[:, None]
    for crop in range(rows.crops):
        start = rows.patch_start(crop)
        patches = qkv[start : start + rows.patches, :rotated]
        first, second = patches.float().unflatten(1, (-1, sin.shape[-1], 2)).unbind(-1)
        pairs = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
        patches.copy_(pairs.flatten(1))
