"""Baselines of the model segment: the same crops in, the same logits out, by what PyTorch users reach for.

All run LightlyTrain's unmodified modules with BF16 weights (`peers/network.py`) and take fp32 crops, whose
cast to BF16 is part of the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fasteomt.checkpoint import Checkpoint
from fasteomt.engine.graph import capture
from fasteomt.errors import InputError, UnsupportedError, brief
from fasteomt.model.spec import ModelSpec
from fasteomt.peers.compiled import max_autotune, reduce_overhead
from fasteomt.peers.float8 import torchao_fp8
from fasteomt.peers.network import Network, load_network
from fasteomt.peers.tensorrt import tensorrt

Call = Callable[[Tensor], tuple[Tensor, Tensor]]

# torch.compile's graphs run eagerly first, are recorded at the second call and replayed from the third on.
WARM_UP_CALLS = 3


@dataclass(frozen=True)
class Peer:
    """A baseline ready to be timed.

    `call`: normalised crops, fp32, of the shape and device that it was loaded for -> mask logits (B, Q, s, s)
    and class logits (B, Q, K + 1), bf16. Their memory may be reused by the next call of any peer.
    They carry no gradient: eager and graph run in inference mode, compiled ones in no_grad mode, since
    compilers fail on tensors of inference mode in some versions.
    `setup_s`: seconds that compiling, tuning, capturing and the first calls took, after loading the weights.
    """

    name: str
    call: Call
    setup_s: float


@dataclass(frozen=True)
class Baseline:
    """`prepare(network, crops)` makes the call; with `cuda` it needs a GPU."""

    summary: str
    prepare: Callable[[Network, Tensor], Call]
    cuda: bool = True


def load_peer(name: str, checkpoint: Checkpoint, device: torch.device, crops: Tensor) -> Peer:
    """A baseline by its name, one of `PEERS`, ready for crops like `crops`.

    Args:
        crops: (B, 3, S, S) fp32 on `device`, normalised; the values are used to warm up.

    Raises:
        InputError: unknown name, or crops that the model doesn't take.
        UnsupportedError: this machine lacks what the baseline needs; the message names it.
        CheckpointError: LightlyTrain can't open the model.
    """
    baseline = PEERS.get(name)
    if baseline is None:
        raise InputError(f"unknown baseline {brief(name)}: choose one of {', '.join(PEERS)}")
    if baseline.cuda and device.type != "cuda":
        raise UnsupportedError(f"baseline '{name}' needs a CUDA device, not {device}: use eager_bf16")
    spec = checkpoint.spec
    expected = (len(crops), 3, spec.crop_size, spec.crop_size)
    if crops.shape != expected or crops.dtype != torch.float32 or crops.device != device:
        raise InputError(
            f"baseline '{name}': crops must be {expected} float32 on {device}: check their shape"
        )
    with _current(device):
        network = load_network(checkpoint, device)
        _wait(device)
        start = time.perf_counter()
        call = _guarded(name, baseline.prepare(network, crops), crops)
        for _ in range(WARM_UP_CALLS):
            outputs = call(crops)
        _wait(device)
        setup_s = time.perf_counter() - start
        _check_outputs(name, spec, len(crops), outputs)
    return Peer(name, call, setup_s)


def eager_bf16(network: Network, crops: Tensor) -> Call:
    """The network itself, in inference mode."""
    run: Call = torch.inference_mode()(network.forward)
    return run


@torch.inference_mode()
def graph_bf16(network: Network, crops: Tensor) -> Call:
    """One CUDA graph of the eager call, fed by a copy."""
    static = crops.clone()
    graph = capture(lambda: network(static), WARM_UP_CALLS)

    @torch.inference_mode()
    def call(inputs: Tensor) -> tuple[Tensor, Tensor]:
        static.copy_(inputs)
        return graph.replay()

    return call


def _guarded(name: str, run: Call, crops: Tensor) -> Call:
    """`run` for inputs like `crops` only: others would be broadcast into a graph's buffer, or compiled anew
    while the clock runs."""
    shape, dtype, device = crops.shape, crops.dtype, crops.device

    def call(inputs: Tensor) -> tuple[Tensor, Tensor]:
        if inputs.shape != shape or inputs.dtype != dtype or inputs.device != device:
            raise InputError(
                f"baseline '{name}' was loaded for crops {tuple(shape)} {dtype} on {device}: load it again"
            )
        return run(inputs)

    return call


def _check_outputs(name: str, spec: ModelSpec, crops: int, outputs: tuple[Tensor, Tensor]) -> None:
    masks, classes = outputs
    side = spec.grid_size * 2**spec.num_upscale_blocks
    expected = ((crops, spec.num_queries, side, side), (crops, spec.num_queries, len(spec.class_ids) + 1))
    if (masks.shape, classes.shape) != expected or {masks.dtype, classes.dtype} != {torch.bfloat16}:
        found = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in outputs)
        raise UnsupportedError(
            f"baseline '{name}' gives {found}, not bfloat16 {expected}: check its versions"
        )
    if not all(bool(x.isfinite().all()) for x in outputs):
        raise UnsupportedError(f"baseline '{name}' gives values that are not finite: check the checkpoint")


def _current(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


PEERS = {
    "eager_bf16": Baseline("LightlyTrain's modules, BF16 weights, eager PyTorch", eager_bf16, cuda=False),
    "graph_bf16": Baseline("one CUDA graph of eager_bf16", graph_bf16),
    "compile_reduce_overhead": Baseline(
        "torch.compile of eager_bf16, mode reduce-overhead (CUDA graphs), whole network as one graph",
        reduce_overhead,
    ),
    "compile_max_autotune": Baseline(
        "torch.compile of eager_bf16, mode max-autotune (CUDA graphs), whole network as one graph",
        max_autotune,
    ),
    "torchao_fp8": Baseline(
        "torchao FP8 (E4M3, dynamic, per tensor) on every Linear that it takes, the rest BF16; torch.compile "
        "with CUDA graphs and coordinate descent tuning",
        torchao_fp8,
    ),
    "tensorrt": Baseline("Torch-TensorRT engine of eager_bf16, BF16, replayed as a CUDA graph", tensorrt),
}
