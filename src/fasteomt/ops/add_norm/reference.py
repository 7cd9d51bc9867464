"""The residual add, the arrangement of tokens and the LayerNorm in fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.add_norm import Problem
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    out: Tensor,
    *,
    scale: Tensor | None = None,
    x_out: Tensor | None = None,
    source: Tensor | None = None,
    initial: Tensor | None = None,
) -> None:
    value = x.float()
    if delta is not None:
        value = value + (delta.float() if scale is None else scale * delta.float())
    if source is not None:
        # The rows of `initial`, turned round, end the table: negative indices count from its end.
        table = value if initial is None else torch.cat([value, initial.flip(0)])
        value = table[source.long() % len(table)]
    if x_out is not None:
        x_out.copy_(value)
    out.copy_(F.layer_norm(value, value.shape[-1:], weight, bias, eps))
