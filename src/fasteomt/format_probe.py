"""Whether a number format runs on a device: one matmul of ones, whose result is known, decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_SIZE = 128  # every format's tile divides it; ones @ ones is then exactly 128 in each


@dataclass(frozen=True)
class FormatSupport:
    """`runs`: the matmul gave the right numbers on `device`; `note` says why not, else ''."""

    format: str
    device: str
    runs: bool
    note: str


def _ones(device: str, dtype: torch.dtype) -> Tensor:
    return torch.ones(_SIZE, _SIZE, device=device, dtype=dtype)


def _plain(device: str) -> Tensor:
    return _ones(device, torch.float32) @ _ones(device, torch.float32)


def _autocast(dtype: torch.dtype) -> Callable[[str], Tensor]:
    def run(device: str) -> Tensor:
        with torch.autocast(torch.device(device).type, dtype=dtype):
            out = _ones(device, torch.float32) @ _ones(device, torch.float32)
        if out.dtype != dtype:
            raise RuntimeError(f"autocast computed in {out.dtype}")
        return out

    return run


def _scaled(operand: Tensor, scale: Tensor, recipe: functional.ScalingType) -> Tensor:
    blockwise = recipe is not functional.ScalingType.TensorWise
    swizzle = functional.SwizzleType.SWIZZLE_32_4_4 if blockwise else functional.SwizzleType.NO_SWIZZLE
    return functional.scaled_mm(
        operand, operand.t(), scale, recipe, scale, recipe, swizzle, swizzle, output_dtype=torch.bfloat16
    )


def _fp8(device: str) -> Tensor:
    scale = torch.ones((), device=device)
    return _scaled(_ones(device, torch.float8_e4m3fn), scale, functional.ScalingType.TensorWise)


def _block_scaled(
    operand_dtype: torch.dtype, scale_dtype: torch.dtype, block: int
) -> Callable[[str], Tensor]:
    """Operand of ones with one scale of 1 per `block` values of a row; all scales equal, so their
    swizzled order doesn't matter."""

    def run(device: str) -> Tensor:
        if operand_dtype is torch.float4_e2m1fn_x2:
            # two values a byte; 0b0010 is 1.0 in E2M1
            packed = torch.full((_SIZE, _SIZE // 2), 0x22, device=device, dtype=torch.uint8)
            operand = packed.view(torch.float4_e2m1fn_x2)
            # (M, K / 2) bytes hold (M, K) values, so that K = 128
        else:
            operand = _ones(device, operand_dtype)
        scales = torch.ones(_SIZE * (_SIZE // block), device=device).to(scale_dtype)
        recipe = functional.ScalingType.BlockWise1x16 if block == 16 else functional.ScalingType.BlockWise1x32
        return _scaled(operand, scales, recipe)

    return run


FORMATS: dict[str, Callable[[str], Tensor]] = {
    "fp32": _plain,
    "bf16": _autocast(torch.bfloat16),
    "fp16": _autocast(torch.float16),
    "fp8_e4m3": _fp8,
    "mxfp8": _block_scaled(torch.float8_e4m3fn, torch.float8_e8m0fnu, 32),
    "nvfp4": _block_scaled(torch.float4_e2m1fn_x2, torch.float8_e4m3fn, 16),
    "mxfp4": _block_scaled(torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, 32),
}
_NEEDS_GPU = ("fp8_e4m3", "mxfp8", "nvfp4", "mxfp4")


def probe_format(name: str, device: str) -> FormatSupport:
    """Run format `name` (a key of `FORMATS`) on `device` ('cpu', 'cuda:0', ...)."""
    if name in _NEEDS_GPU and torch.device(device).type == "cpu":
        return FormatSupport(name, device, False, "needs a CUDA GPU")
    try:
        out = FORMATS[name](device).float().cpu()
    # torch reports what it can't do through several types, ImportError and AssertionError among them;
    # whatever it is, the answer is the same: not here, and why.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return FormatSupport(name, device, False, lines[0].strip()[:200])
    wrong = bool((out != _SIZE).any())
    return FormatSupport(name, device, not wrong, "computed wrong numbers" if wrong else "")
