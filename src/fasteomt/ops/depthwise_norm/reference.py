"""Convolution and LayerNorm in fp32, on images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.depthwise_norm import Problem
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(
    x: Tensor, weight: Tensor, norm_weight: Tensor, norm_bias: Tensor, eps: float, out: Tensor, grid: Grid
) -> None:
    channels = x.shape[1]
    shape = (grid.crops, channels, grid.resolution, grid.resolution)
    images = torch.empty(shape, dtype=torch.float32, device=x.device, memory_format=torch.channels_last)
    pixels = grid.in_row_order(images)
    pixels.copy_(x.view(grid.crops, -1, channels).mT.unflatten(2, pixels.shape[2:]))
    convolved = F.conv2d(images, weight.T.reshape(channels, 1, 3, 3), padding=1, groups=channels)
    rows = grid.in_row_order(convolved).flatten(2).mT.flatten(0, 1)
    out.copy_(F.layer_norm(rows, (channels,), norm_weight, norm_bias, eps))
