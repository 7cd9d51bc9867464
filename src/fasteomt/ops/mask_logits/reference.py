"""The products in fp32."""

from __future__ import annotations

from torch import Tensor

from fasteomt.ops.grid import Grid
from fasteomt.ops.mask_logits import Problem
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(queries: Tensor, features: Tensor, out: Tensor, grid: Grid) -> None:
    of_crops = queries.float().unflatten(0, (grid.crops, -1))
    pixels = features.float().unflatten(0, (grid.crops, -1))
    logits = of_crops @ pixels.mT  # (B, Q, pixels of a crop), in the order of rows
    ordered = grid.in_row_order(out)
    ordered.copy_(logits.view(ordered.shape))
