"""Weights as kernels take them: in the number format of their group, laid out, joined and padded.

Names of weights are LightlyTrain's, found through `Site.upstream`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.errors import UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.rotation import interleave
from fasteomt.plan import Site

# Rows of a weight are padded to a multiple of this: kernels move 16 bytes at a time, and more at once.
ROW_MULTIPLE = 16
_PREFIX = ("cls_token", "storage_tokens")


@dataclass(frozen=True)
class Dense:
    """weight (N, K), bias (N,) or None; rows from `outputs` on are padding, and zero."""

    weight: Tensor
    bias: Tensor | None
    outputs: int


class Packing:
    """Packs one model's weights onto one device, each once; nothing it gives shares memory with `weights`.

    After `seal` the weights it was made from are let go, and only what was packed by then can be asked for.

    Args:
        weights: by LightlyTrain's names.

    Raises (in its methods):
        UnsupportedError: a weight is too large for the format that is asked for.
    """

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._spec, self._weights, self._device = spec, dict(weights), device
        self._packed: dict[object, Any] = {}

    def seal(self) -> None:
        self._weights = {}

    def dense(self, sites: Sequence[Site], dtype: torch.dtype, bias_dtype: torch.dtype | None) -> Dense:
        """The products of `sites`, which share their input, as one matrix.

        Args:
            dtype: of the weight. bias_dtype: None for the same.
        """
        key = ("dense", tuple(site.name for site in sites), dtype, bias_dtype)
        found: Dense = self._once(key, lambda: self._pack(sites, dtype, bias_dtype or dtype))
        return found

    def _pack(self, sites: Sequence[Site], dtype: torch.dtype, bias_dtype: torch.dtype) -> Dense:
        parts = [self._product(site) for site in sites]
        weight = torch.cat([weight for weight, _ in parts])
        biases = [bias for _, bias in parts if bias is not None]
        bias = torch.cat(biases) if biases else None
        padding = self.outputs(sites) - weight.shape[0]
        name = sites[0].upstream
        return Dense(
            self._on_device(F.pad(weight, (0, 0, 0, padding)), dtype, name),
            None if bias is None else self._on_device(F.pad(bias, (0, padding)), bias_dtype, name),
            weight.shape[0],
        )

    def outputs(self, sites: Sequence[Site]) -> int:
        """Rows of what `dense` makes of these sites. The class head's are padded: it may have any number."""

        def count() -> int:
            shapes = [self._weights[f"{site.upstream}.weight"].shape for site in sites]
            upscale = sites[0].name.startswith("head.up")
            outputs = sum(4 * shape[1] if upscale else shape[0] for shape in shapes)
            padded = -(-outputs // ROW_MULTIPLE) * ROW_MULTIPLE
            return padded if sites[0].name == "head.class" else outputs

        found: int = self._once(("outputs", tuple(site.name for site in sites)), count)
        return found

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
        """(C,) fp32."""
        return self.vector(f"{site.upstream}.gamma")

    def depthwise(self, site: Site) -> Tensor:
        """(9, C) fp32, taps row by row."""
        return self._fp32(f"{site.upstream}.weight", lambda weight: weight.flatten(1).T)

    def prefix(self) -> Tensor:
        """The class token and the registers, (1 + registers, C) fp32."""
        return torch.cat([self._fp32(f"backbone.{name}", lambda token: token[0]) for name in _PREFIX])

    def queries(self) -> Tensor:
        """(Q, C) fp32."""
        return self.vector("queries.weight")

    def vector(self, name: str) -> Tensor:
        """A weight as it is, fp32."""
        return self._fp32(name, lambda weight: weight)

    def _fp32(self, name: str, arrange: Callable[[Tensor], Tensor]) -> Tensor:
        def make() -> Tensor:
            return self._on_device(arrange(self._weights[name]), torch.float32, name)

        found: Tensor = self._once(("fp32", name), make)
        return found

    def _once(self, key: object, make: Callable[[], object]) -> Any:
        if key not in self._packed:
            self._packed[key] = make()
        return self._packed[key]

    def _on_device(self, weight: Tensor, dtype: torch.dtype, name: str) -> Tensor:
        if weight.device.type != "meta":
            largest = float(weight.abs().amax()) if weight.numel() else 0.0
            if torch.finfo(dtype).max < largest < torch.inf:
                raise UnsupportedError(
                    f"{name}: holds {largest:.3g}, more than {str(dtype).removeprefix('torch.')} can: "
                    "use --stack bf16"
                )
        return weight.to(self._device, dtype, copy=True).contiguous()
