"""Round 5: products that lead back to the residual stream add to it themselves, in fp32."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round4_attention"


def change(stack: Stack) -> Stack:
    return replace(stack, name="r5_v1", summary="round 5: BF16, the blocks' kernels fused", add="linear")
