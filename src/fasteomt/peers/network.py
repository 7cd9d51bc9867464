"""LightlyTrain's network in 16 bits: what every baseline of the model segment runs.

It ends where fasteomt's own engine ends, at the last layer's logits, before the mask logits are upsampled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fasteomt.checkpoint import Checkpoint
from fasteomt.compat.lightly import cast_weights, last_logits
from fasteomt.errors import UnsupportedError
from fasteomt.peers.upstream import open_model


class Network(nn.Module):
    """A LightlyTrain model that computes in the dtype of its weights."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised crops (B, 3, S, S) fp32 -> mask logits (B, Q, s, s), class logits (B, Q, K + 1)."""
        return last_logits(self.model, crops.to(self.dtype))


def load_network(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Network:
    """A checkpoint as LightlyTrain's unmodified modules, weights in `dtype`, on `device`.

    Raises:
        CheckpointError: upstream can't open it. UnsupportedError: lightly_train isn't installed.
    """
    model = open_model(checkpoint, device)
    cast_weights(model, dtype)
    network = Network(model, dtype).requires_grad_(False).eval()
    require_weights(network, dtype)
    return network


def require_weights(network: nn.Module, dtype: torch.dtype) -> None:
    """Every parameter is of `dtype`: a layer left in fp32 would be measured under a false name.

    Raises:
        UnsupportedError: names the first parameter that isn't.
    """
    for name, parameter in network.named_parameters():
        if parameter.dtype != dtype:
            raise UnsupportedError(
                f"baseline's weight '{name}' is {parameter.dtype}, not {dtype}: use LightlyTrain 0.16.2"
            )
