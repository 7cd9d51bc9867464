"""torch.bmm, then one copy into raster order."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.ops.grid import Grid
from fasteomt.ops.mask_logits import Problem
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(queries: Tensor, features: Tensor, out: Tensor, grid: Grid) -> None:
    of_crops = queries.unflatten(0, (grid.crops, -1))
    pixels = features.unflatten(0, (grid.crops, -1)).mT
    if out.is_cuda and out.dtype != queries.dtype:
        logits = torch.bmm(of_crops, pixels, out_dtype=out.dtype)
    else:  # on the CPU the result has the dtype of the operands
        logits = torch.bmm(of_crops.to(out.dtype), pixels.to(out.dtype))
    ordered = grid.in_row_order(out)
    ordered.copy_(logits.view(ordered.shape))
