"""TensorRT through Torch-TensorRT, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fasteomt.errors import UnsupportedError


def tensorrt(network: nn.Module, crops: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Export `network` for crops of this shape and build one engine of it, in the dtypes that it has.

    Raises:
        UnsupportedError: torch_tensorrt isn't installed.
    """
    try:
        torch_tensorrt: Any = import_module("torch_tensorrt")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"package '{error.name}' is not installed: run  pip install torch-tensorrt"
        ) from None
    engine = torch_tensorrt.dynamo.compile(
        torch.export.export(network, (crops,), strict=False),
        inputs=[crops],
        use_explicit_typing=True,
        # Whole or not at all: what TensorRT doesn't take would otherwise stay with PyTorch.
        require_full_compilation=True,
        min_block_size=1,
    )
    # A setting of Torch-TensorRT alone.
    torch_tensorrt.runtime.set_cudagraphs_mode(True)
    run: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.no_grad()(engine)
    return run
