"""What updates the weights: Muon and AdamW, with one rate that lies on the device for a graph to read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fasteomt.train.distributed import average
from fasteomt.train.muon import Muon

WEIGHT_DECAY = 0.05


class Optimizer:
    """Muon on the matrices of the blocks, AdamW on everything else, with one rate on the device. Matrices and
    convolutions decay; biases, scales and tokens do not."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.rate = torch.zeros((), device=device)
        hidden = {name: p for name, p in model.named_parameters() if ".blocks." in name and p.dim() == 2}
        qkv = [p for name, p in hidden.items() if ".qkv." in name]
        single = [p for name, p in hidden.items() if ".qkv." not in name]
        rest = [p for name, p in model.named_parameters() if name not in hidden]
        cuda = device.type == "cuda"
        matrices: list[dict[str, Any]] = [{"params": qkv, "parts": 3}, {"params": single}]
        self._muon = Muon(matrices, self.rate, weight_decay=WEIGHT_DECAY)
        self._adamw = torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.dim() in (2, 4)], "weight_decay": WEIGHT_DECAY},
                {"params": [p for p in rest if p.dim() not in (2, 4)], "weight_decay": 0.0},
            ],
            lr=self.rate, betas=(0.9, 0.98), fused=cuda, capturable=cuda,
        )  # fmt: skip

    def step(self, loss: Tensor) -> None:
        """Backward of `loss`, the mean gradient of all processes clipped to norm 1, one update."""
        for p in self.parameters:
            p.grad = None
        loss.backward()
        average([p.grad for p in self.parameters if p.grad is not None])
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self._muon.step()
        self._adamw.step()
