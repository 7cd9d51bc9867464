"""Round 2: the same kernels, replayed as one CUDA graph."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round1_torch_cleanup"


def change(stack: Stack) -> Stack:
    summary = "BF16 with torch's own kernels in one CUDA graph"
    return replace(stack, name="torch_bf16", summary=summary, graph=True)
