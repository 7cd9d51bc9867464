"""Round 2: the same kernels, replayed as one CUDA graph."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round1_torch_cleanup"


def change(stack: Stack) -> Stack:
    return replace(stack, name="r2", summary="round 1 in one CUDA graph", graph=True)
