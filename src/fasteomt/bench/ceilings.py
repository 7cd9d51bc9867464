"""What a device can do at best, measured: matrix products in each number format, and copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fasteomt.bench.lock import gpu_lock
from fasteomt.bench.timer import Candidate, measure
from fasteomt.capabilities import hardware_name
from fasteomt.engine import resolve_device
from fasteomt.format_probe import probe_format

# (side of the matrices, values copied) by type of device: large enough to fill it.
_SIZES = {"cuda": (8192, 2**28), "cpu": (512, 2**22)}
_FIRST_TF32 = (8, 0)


@dataclass(frozen=True)
class Ceilings:
    """The best of several rounds, not the median: a floor must not be too high.

    gpu: the hardware's name; date: when it was measured, ISO 8601; torch: its version.
    copy_bytes_per_s: bytes read plus bytes written; flops_per_s: of a large matrix product, by format.
    """

    gpu: str
    date: str
    torch: str
    copy_bytes_per_s: float
    flops_per_s: Mapping[str, float]


def measure_ceilings(device: torch.device, *, seconds: float = 1.0) -> Ceilings:
    """Measure every format that runs on `device`; `seconds` for each, as in `timer.measure`.

    FP8 sums with reduced precision (`use_fast_accum`), its fastest way.

    Raises:
        InputError: no such device, or it is in use.
    """
    device = resolve_device(device)
    size, copied = _SIZES[device.type]
    generator = torch.Generator(device).manual_seed(0)

    # A graph makes of a plain copy a node of its own, which is slower on an H200 than the kernel of a call.
    def best(call: Callable[..., object], *arguments: Tensor, mode: str = "calls") -> float:
        return measure([Candidate("", call, [arguments])], device, mode=mode, seconds=seconds)[""].min

    with gpu_lock(device):
        source = torch.randn(copied, device=device, generator=generator)
        seconds_a_copy = best(lambda target, source: target.copy_(source), source.clone(), source)
        flops = {}
        for recipe in _runnable(device):
            dtype, product = _PRODUCTS[recipe]
            a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
            mode = "graph" if device.type == "cuda" else "calls"
            flops[recipe] = 2 * size**3 / best(product, a, b, mode=mode)
        return Ceilings(
            gpu=hardware_name(device),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            torch=torch.__version__,
            copy_bytes_per_s=2 * source.nbytes / seconds_a_copy,
            flops_per_s=flops,
        )


def _runnable(device: torch.device) -> Iterator[str]:
    for recipe in _PRODUCTS:
        if recipe == "tf32":
            if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_TF32:
                yield recipe
        elif probe_format(recipe, str(device)).runs:
            yield recipe


@contextmanager
def _fp32_precision(precision: str) -> Iterator[None]:
    """'ieee' or 'tf32' for matrix products of fp32 tensors, on GPU and CPU."""
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.mkldnn.matmul)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = precision
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value


def _product_at(precision: str) -> Callable[[Tensor, Tensor], Tensor]:
    def product(a: Tensor, b: Tensor) -> Tensor:
        with _fp32_precision(precision):
            return a @ b

    return product


def _fp8_product(a: Tensor, b: Tensor) -> Tensor:
    scale = torch.ones((), device=a.device)
    recipe = functional.ScalingType.TensorWise
    return functional.scaled_mm(
        a, b.t(), scale, recipe, scale, recipe, output_dtype=torch.bfloat16, use_fast_accum=True
    )


_PRODUCTS: dict[str, tuple[torch.dtype, Callable[[Tensor, Tensor], Tensor]]] = {
    "fp32": (torch.float32, _product_at("ieee")),
    "tf32": (torch.float32, _product_at("tf32")),
    "bf16": (torch.bfloat16, torch.matmul),
    "fp16": (torch.float16, torch.matmul),
    "fp8_e4m3": (torch.float8_e4m3fn, _fp8_product),
}
