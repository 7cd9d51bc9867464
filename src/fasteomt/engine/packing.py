"""Weights as kernels take them: in the number format of their group, laid out, joined and padded.

Names of weights are LightlyTrain's, found through `Site.upstream`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.model.spec import ModelSpec
from fasteomt.ops.rotation import interleave
from fasteomt.plan import Site

# Rows of a weight are padded to a multiple of this: kernels move 16 bytes at a time, and more at once.
ROW_MULTIPLE = 16


@dataclass(frozen=True)
class Dense:
    """weight (N, K), bias (N,) or None; rows from `outputs` on are padding, and zero."""

    weight: Tensor
    bias: Tensor | None
    outputs: int


class Packing:
    """Packs one model's weights onto one device.

    Args:
        weights: fp32, by LightlyTrain's names.
    """

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._spec, self._weights, self._device = spec, weights, device
        self._dense: dict[object, Dense] = {}
        self._vectors: dict[str, Tensor] = {}

    def dense(self, sites: Sequence[Site], dtype: torch.dtype, bias_dtype: torch.dtype | None) -> Dense:
        """The products of `sites`, which share their input, as one matrix.

        Args:
            dtype: of the weight. bias_dtype: None for the same.
        """
        key = (tuple(site.name for site in sites), dtype, bias_dtype)
        if key not in self._dense:
            self._dense[key] = self._pack(sites, dtype, bias_dtype or dtype)
        return self._dense[key]

    def _pack(self, sites: Sequence[Site], dtype: torch.dtype, bias_dtype: torch.dtype) -> Dense:
        parts = [self._product(site) for site in sites]
        weight = torch.cat([weight for weight, _ in parts])
        biases = [bias for _, bias in parts if bias is not None]
        padding = self.padded_outputs(sites) - weight.shape[0]
        return Dense(
            self._on_device(F.pad(weight, (0, 0, 0, padding)), dtype),
            self._on_device(F.pad(torch.cat(biases), (0, padding)), bias_dtype) if biases else None,
            weight.shape[0],
        )

    def padded_outputs(self, sites: Sequence[Site]) -> int:
        """Rows of what `dense` makes of these sites."""
        shapes = [self._weights[f"{site.upstream}.weight"].shape for site in sites]
        upscale = sites[0].name.startswith("head.up")
        outputs = sum(4 * shape[1] if upscale else shape[0] for shape in shapes)
        return -(-outputs // ROW_MULTIPLE) * ROW_MULTIPLE

    def _product(self, site: Site) -> tuple[Tensor, Tensor | None]:
        weight = self._weights[f"{site.upstream}.weight"]
        bias = self._weights.get(f"{site.upstream}.bias")
        if site.name.endswith(".qkv"):
            if bias is not None:
                bias = bias * self._weights[f"{site.upstream}.bias_mask"]
            return self._pairs(weight), None if bias is None else self._pairs(bias)
        if site.name.startswith("head.up"):
            # A transposed convolution of stride 2 gives each of its 2 x 2 outputs one product.
            weight = weight.permute(2, 3, 1, 0).flatten(0, 2)
            return weight, None if bias is None else bias.repeat(4)
        return weight.flatten(1), bias

    def _pairs(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.chunk(3)
        heads = self._spec.num_heads
        return torch.cat([interleave(q, heads), interleave(k, heads), v])

    def norm(self, site: Site) -> tuple[Tensor, Tensor]:
        """Weight and bias of a LayerNorm, fp32."""
        return self.vector(f"{site.upstream}.weight"), self.vector(f"{site.upstream}.bias")

    def layer_scale(self, site: Site) -> Tensor:
        return self.vector(f"{site.upstream}.gamma")

    def depthwise(self, site: Site) -> Tensor:
        """(9, C) fp32, taps row by row."""
        weight = self._weights[f"{site.upstream}.weight"]
        return self._on_device(weight.flatten(1).T, torch.float32)

    def prefix(self) -> Tensor:
        """The class token and the registers, (1 + registers, C) fp32."""
        names = ("backbone.cls_token", "backbone.storage_tokens")
        return self._on_device(torch.cat([self._weights[name][0] for name in names]), torch.float32)

    def queries(self) -> Tensor:
        """(Q, C) fp32."""
        return self.vector("queries.weight")

    def vector(self, name: str) -> Tensor:
        """A weight as it is, fp32."""
        if name not in self._vectors:
            self._vectors[name] = self._on_device(self._weights[name], torch.float32)
        return self._vectors[name]

    def _on_device(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        return weight.to(self._device, dtype).contiguous()
