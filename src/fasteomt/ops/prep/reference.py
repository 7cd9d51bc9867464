"""The whole frame in fp32, step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.geometry import HEAD
from fasteomt.ops.prep import Problem
from fasteomt.ops.prep.parameters import MATRIX, STRIDES
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(
    frame: Tensor,
    chroma: Tensor | None,
    table: Tensor,
    parameters: Tensor,
    out: Tensor,
    problem: Problem,
) -> None:
    height, width, resized_height, resized_width, axis, crops = table[:HEAD].tolist()
    stride, chroma_stride = parameters[STRIDES:MATRIX].int().tolist()
    matrix, offset, gain, bias = parameters[MATRIX:].split([9, 3, 3, 3])
    if problem.layout == "rgb":
        colors = frame.as_strided((height, width, 3), (stride, 3, 1)).float()
    else:
        pairs = (width + 1) // 2
        if problem.layout == "nv12":
            assert chroma is not None
            luma = frame.as_strided((height, width, 1), (stride, 1, 1))
            lines = chroma.as_strided(((height + 1) // 2, pairs, 2), (chroma_stride, 2, 1))
            shades = lines.repeat_interleave(2, dim=0)[:height]
        else:
            quads = frame.as_strided((height, pairs, 4), (stride, 4, 1))
            luma = quads[..., 0::2].reshape(height, -1, 1)[:, :width]
            shades = quads[..., 1::2]
        yuv = torch.cat([luma, shades.repeat_interleave(2, dim=1)[:, :width]], dim=2).float()
        colors = (yuv @ matrix.view(3, 3).T + offset).clamp(0, 1)
    x = (colors * gain + bias).permute(2, 0, 1)
    if x.shape[1:] != (resized_height, resized_width):
        x = F.interpolate(x[None], (resized_height, resized_width), mode="bilinear", antialias=True)[0]
    size, patch = problem.size, problem.patch
    side = size // patch
    for crop, start in enumerate(table[HEAD : HEAD + crops].tolist()):
        square = x[:, start : start + size] if axis == 0 else x[:, :, start : start + size]
        cut = square.unflatten(2, (side, patch)).unflatten(1, (side, patch))  # channel, row, y, column, x
        rows = cut.permute(1, 3, 0, 2, 4).reshape(side * side, -1)
        out[crop * side * side : (crop + 1) * side * side].copy_(rows)
