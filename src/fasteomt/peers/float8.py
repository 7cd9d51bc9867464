"""torchao's FP8 inference: activations quantised as they come, weights once, both E4M3 per tensor."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fasteomt.errors import UnsupportedError
from fasteomt.peers.compiled import compile_network, mode_options

VERSION = "0.18.0"
_NAMES = ("quantize_", "Float8DynamicActivationFloat8WeightConfig", "Float8Tensor")
# FP8 matrix multiplication takes only dimensions that are multiples of this.
_MULTIPLE = 16


def torchao_fp8(network: nn.Module, crops: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Quantise `network` in place and compile it.

    Raises:
        UnsupportedError: torchao or torch.compile's tools are missing, or the GPU has no FP8.
    """
    if torch.cuda.get_device_capability(crops.device) < (8, 9):
        raise UnsupportedError(
            "baseline 'torchao_fp8' needs a GPU with FP8 (compute capability 8.9): use others"
        )
    # torchao would make this setting for the whole process, and so for the other baselines too.
    options = mode_options("reduce-overhead") | {"coordinate_descent_tuning": True}
    quantise_linears(network)
    return compile_network(network, options=options)


def quantise_linears(network: nn.Module) -> list[str]:
    """Give every Linear whose sizes FP8 takes an FP8 weight, in place; returns their names.

    Raises:
        UnsupportedError: torchao is missing or another, or left a layer as it was.
    """
    quantize, config, tensor = _torchao()
    chosen = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and all(size % _MULTIPLE == 0 for size in module.weight.shape)
    ]
    quantize(network, config(set_inductor_config=False), filter_fn=lambda _, name: name in chosen)
    for name in chosen:
        if not isinstance(network.get_submodule(name).weight, tensor):
            raise UnsupportedError(f"torchao left '{name}' unquantised: run  pip install torchao=={VERSION}")
    return chosen


def _torchao() -> tuple[Any, ...]:
    remedy = f"run  pip install torchao=={VERSION}"
    try:
        quantization = import_module("torchao.quantization")
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"package '{error.name}' is not installed: {remedy}") from None
    missing = [name for name in _NAMES if not hasattr(quantization, name)]
    if missing:
        raise UnsupportedError(f"this torchao has no {', '.join(missing)}: {remedy}")
    return tuple(getattr(quantization, name) for name in _NAMES)
