"""torch.compile around a network: whole or not at all, and with CUDA graphs or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from fasteomt.errors import UnsupportedError

Call = Callable[[Tensor], tuple[Tensor, Tensor]]


def reduce_overhead(network: nn.Module, crops: Tensor) -> Call:
    """Raises UnsupportedError where torch.compile lacks Triton or a C compiler."""
    return compile_network(network, options=mode_options("reduce-overhead"))


def max_autotune(network: nn.Module, crops: Tensor) -> Call:
    """Raises UnsupportedError where torch.compile lacks Triton or a C compiler."""
    return compile_network(network, options=mode_options("max-autotune"))


def mode_options(mode: str) -> dict[str, Any]:
    """The settings of a mode of torch.compile, and that it fails where CUDA graphs would be left out."""
    require_toolchain()
    import torch._inductor

    return torch._inductor.list_mode_options(mode) | {"triton.cudagraph_or_error": True}


def compile_network(
    network: nn.Module, *, backend: str = "inductor", options: dict[str, Any] | None = None
) -> Call:
    """torch.compile of `network` for one shape and no gradient, as one graph; a graph break is an error."""

    def forward(crops: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = network(crops)
        return out

    # torch counts compilations by code object and gives up after a few. Peers of one process don't share one.
    own = FunctionType(forward.__code__.replace(), forward.__globals__, closure=forward.__closure__)
    # Inference mode instead would break compilation in some versions, and the graph is the same.
    compiled: Call = torch.no_grad()(
        torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)
    )
    return compiled


def require_toolchain() -> None:
    """Raises UnsupportedError naming what torch.compile's GPU back end lacks here."""
    if find_spec("triton") is None:
        raise UnsupportedError("torch.compile needs the package triton: run  pip install triton")
    if os.environ.get("CC") is None and not any(map(shutil.which, ("gcc", "clang", "cc"))):
        raise UnsupportedError("torch.compile needs a C compiler: install gcc, or set CC")
