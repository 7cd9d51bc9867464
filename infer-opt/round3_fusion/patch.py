"""Round 3: products take GELU and RoPE along; adding to the stream and the next norm are one kernel."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round2_cuda_graph"


def change(stack: Stack) -> Stack:
    fused = replace(stack.on_gpu, linear="fused", add_norm="fused")
    return replace(stack, name="r3", summary="round 2 with fused kernels", on_gpu=fused, rope="linear")
