"""The maths in fp32; only the result is rounded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.linear import Normed, Problem
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
    norm: Normed | None = None,
) -> None:
    """See `ops.linear`."""
    y = x.float() @ weight.float().T
    if bias is not None:
        y += bias
    if epilogue == "gelu":
        y = F.gelu(y)
    if epilogue == "rope":
        assert rows is not None and rotation is not None
        y[:, :rotated] = _turn(y[:, :rotated], rows, rotation)
    if epilogue in ("residual", "norm"):
        assert scale is not None
        y = out + scale * y
    out.copy_(y)
    if epilogue == "norm":
        assert norm is not None
        norm.out.copy_(F.layer_norm(y, y.shape[1:], norm.weight, norm.bias, norm.eps))


def _turn(y: Tensor, rows: Rows, rotation: Rotation) -> Tensor:
    patch = rows.patch_of_row().to(y.device)
    sin, cos = rotation.sin[patch][:, None], rotation.cos[patch][:, None]
    a, b = y.unflatten(1, (-1, sin.shape[-1], 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(1)
    return torch.where(patch[:, None] >= 0, turned, y)
