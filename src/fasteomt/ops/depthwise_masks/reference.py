"""Convolution, LayerNorm and products in fp32, on images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.depthwise_masks import Problem
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def fold(queries: Tensor, norm_weight: Tensor, norm_bias: Tensor, folded: Tensor, sums: Tensor) -> None:
    folded[:, :-1] = (queries.float() * norm_weight).unflatten(0, (len(folded), -1))
    folded[:, -1] = 1
    sums[0] = folded[:, :-1].float().sum(2).flatten()
    sums[1] = queries.float() @ norm_bias


def run(x: Tensor, taps: Tensor, eps: float, folded: Tensor, sums: Tensor, out: Tensor, grid: Grid) -> None:
    channels = x.shape[1]
    shape = (grid.crops, channels, grid.resolution, grid.resolution)
    images = torch.empty(shape, dtype=torch.float32, device=x.device, memory_format=torch.channels_last)
    pixels = grid.in_row_order(images)
    pixels.copy_(x.view(grid.crops, -1, channels).mT.unflatten(2, pixels.shape[2:]))
    convolved = F.conv2d(images, taps.T.reshape(channels, 1, 3, 3), padding=1, groups=channels)
    normal = F.layer_norm(convolved.permute(0, 2, 3, 1), (channels,), eps=eps)
    logits = torch.einsum("bqc,byxc->bqyx", folded[:, :-1].float(), normal)
    out.copy_(logits + sums[1].view(grid.crops, -1, 1, 1))
