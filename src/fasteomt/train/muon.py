"""Muon for the matrices of the blocks, batched by shape and with its rate on the device.

torch.optim.Muon reads its rate on the host, so a recorded graph would keep the first one for ever.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Newton-Schulz coefficients and steps of Jordan et al. 2024, kellerjordan.github.io/posts/muon.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
# Update size of AdamW, so that both share a rate: Liu et al. 2025, arXiv:2502.16982.
RMS_OF_ADAMW = 0.2


def orthogonalised(matrices: Tensor) -> Tensor:
    """(B, m, n) -> about U V^T of each matrix U S V^T, by Newton-Schulz; on a GPU in bfloat16."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix, with Nesterov's look ahead and decoupled weight decay.

    Args:
        params: matrices, or groups of them; a group may say of how many matrices, one below the other, each
            of its matrices is made: "parts", 3 for qkv.
        lr: () fp32 on the parameters' device, on AdamW's scale.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]] | Iterable[Tensor],
        lr: Tensor,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; every parameter must have a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                by_shape[p.shape].append(p)
            for matrices in by_shape.values():
                self._step(matrices, group)

    def _step(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        grads = torch.stack([p.grad for p in matrices if p.grad is not None])
        state = self.state[matrices[0]]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(grads)
        state["momentum"].lerp_(grads, 1 - group["momentum"])
        ahead = grads.lerp(state["momentum"], group["momentum"])
        parts = ahead.unflatten(1, (group["parts"], -1)).flatten(0, 1)
        scale = RMS_OF_ADAMW * math.sqrt(max(parts.shape[-2:]))
        update = orthogonalised(parts).view_as(ahead) * (scale * group["lr"])
        for p, u in zip(matrices, update, strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(u)
