"""Patches by views of the crops."""

from __future__ import annotations

from torch import Tensor

from fasteomt.ops.patches import Problem
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(crops: Tensor, out: Tensor, patch: int) -> None:
    cut = crops.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # crop, channel, row, y, column, x
    ordered = cut.permute(0, 2, 4, 1, 3, 5)
    out.view(ordered.shape).copy_(ordered)
