"""Gate O's outlier injection: the same function, with activations that a narrow format finds hard.

Large models grow channels whose activations are tens to hundreds of times larger than the rest. They are
planted here without changing what the model computes: a channel is multiplied where it is made and divided
where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fasteomt.errors import InputError, brief
from fasteomt.model.spec import ModelSpec

FACTOR = 64.0
CHANNELS = 4


def inject(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    factor: float = FACTOR,
    channels: int = CHANNELS,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Weights of the same function whose chosen activations are `factor` times as large.

    In every block `channels` channels each of norm1's output, norm2's output and V are drawn with `seed` and
    multiplied; the columns of the Linear that reads them (qkv; fc1, or w1 and w2; proj) are divided.
    LayerScale and the residual stream stay as they are. A power of two only moves exponents, so products and
    sums in fp32 keep their bits; other factors round.

    Args:
        weights: by LightlyTrain's names, any floating dtype; not changed.

    Returns:
        A new dictionary; changed weights in fp32, the others as they were.

    Raises:
        InputError: a factor that isn't finite and positive, or more channels than there are, or none.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"outliers: factor {brief(factor)}: must be positive and finite, such as 64")
    if not 1 <= channels <= spec.embed_dim:
        raise InputError(f"outliers: {channels} channels: must be 1 to {spec.embed_dim}, all that there are")
    out = dict(weights)
    for block, places in enumerate(injected_channels(spec, channels, seed)):
        prefix = f"backbone.blocks.{block}"
        readers = {
            "norm1": ("attn.qkv",),
            "norm2": ("mlp.w1", "mlp.w2") if spec.ffn == "swiglu" else ("mlp.fc1",),
        }
        for norm, linears in readers.items():
            for name in ("weight", "bias"):
                _scale(out, f"{prefix}.{norm}.{name}", 0, places[norm], factor)
            for linear in linears:
                _scale(out, f"{prefix}.{linear}.weight", 1, places[norm], 1 / factor)
        # qkv's rows are Q, K, V one after the other.
        rows = places["v"] + 2 * spec.embed_dim
        for name in ("weight", "bias") if spec.qkv_bias else ("weight",):
            _scale(out, f"{prefix}.attn.qkv.{name}", 0, rows, factor)
        _scale(out, f"{prefix}.attn.proj.weight", 1, places["v"], 1 / factor)
    return out


def injected_channels(spec: ModelSpec, channels: int = CHANNELS, seed: int = 0) -> list[dict[str, Tensor]]:
    """Of each block, the channels that `inject` chooses: 'norm1', 'norm2' and 'v', each (channels,) int64."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            place: torch.randperm(spec.embed_dim, generator=generator)[:channels]
            for place in ("norm1", "norm2", "v")
        }
        for _ in range(spec.depth)
    ]


def _scale(weights: dict[str, Tensor], name: str, dim: int, places: Tensor, factor: float) -> None:
    weight = weights[name].float()
    scale = torch.ones(weight.shape[dim], device=weight.device)
    scale[places.to(weight.device)] = factor
    shape = [1] * weight.dim()
    shape[dim] = -1
    weights[name] = weight * scale.view(shape)
