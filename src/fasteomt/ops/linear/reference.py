"""The maths in fp32; only the result is rounded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.linear import PART, Folded, HandedOn, Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = torch.float32


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    rows: Rows | None = None,
    epilogue: str = "",
    rotation: Rotation | None = None,
    rotated: int = 0,
    scale: Tensor | None = None,
    norm: Folded | HandedOn | None = None,
) -> None:
    """See `ops.linear`."""
    y = x.float() @ weight.float().T
    if isinstance(norm, Folded):
        mean, variance = moments(norm.parts)
        y = (y - mean * norm.sums) / (variance + norm.eps).sqrt()
    if bias is not None:
        y += bias
    if epilogue == "gelu":
        y = F.gelu(y)
    if epilogue == "rope":
        assert rows is not None and rotation is not None
        y[:, :rotated] = _turn(y[:, :rotated], rows, rotation)
    if epilogue == "residual":
        assert scale is not None
        y = out + scale * y
    out.copy_(y)
    if isinstance(norm, HandedOn):
        hand_on(y, norm)


def hand_on(stream: Tensor, norm: HandedOn) -> None:
    """Write what `norm` holds of a stream (M, N) fp32."""
    norm.copy.copy_(stream)
    parts = stream.unflatten(1, (-1, PART))
    mean = parts.mean(dim=2, keepdim=True)
    norm.parts.copy_(torch.stack([mean[..., 0], (parts - mean).square().sum(dim=2)], dim=2))


def moments(parts: Tensor) -> tuple[Tensor, Tensor]:
    """(M, K / PART, 2) -> mean and variance of the whole rows, (M, 1)."""
    means, squares = parts.unbind(dim=2)
    mean = means.mean(dim=1, keepdim=True)
    total = squares.sum(dim=1, keepdim=True) + PART * (means - mean).square().sum(dim=1, keepdim=True)
    return mean, total / (PART * parts.shape[1])


def _turn(y: Tensor, rows: Rows, rotation: Rotation) -> Tensor:
    patch = rows.patch_of_row().to(y.device)
    sin, cos = rotation.sin[patch][:, None], rotation.cos[patch][:, None]
    a, b = y.unflatten(1, (-1, sin.shape[-1], 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(1)
    return torch.where(patch[:, None] >= 0, turned, y)
