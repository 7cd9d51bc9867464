"""Round 12: the same kernels in FP16, which keeps three bits more of every value than BF16 does."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round11_bf16_small"


def change(stack: Stack) -> Stack:
    return replace(stack, name="fp16", summary="FP16, fused kernels in one CUDA graph", recipe="fp16")
