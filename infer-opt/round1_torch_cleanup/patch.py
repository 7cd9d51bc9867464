"""Round 1: 16-bit weights that stay on the GPU, RoPE tables computed once, cuDNN's attention; plain torch."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = None


def change(stack: Stack) -> Stack:
    return replace(stack, name="r1", summary="BF16 with torch's own kernels, one by one", recipe="bf16")
