"""Round 12: the same kernels in FP16, which keeps three bits more of every value than BF16 does."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round11_bf16_small"


def change(stack: Stack) -> Stack:
    summary = "FP16, fused kernels in one CUDA graph"
    return replace(stack, name="fp16", summary=summary, recipe="fp16", late=None, attention=None)
