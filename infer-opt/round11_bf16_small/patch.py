"""Round 11: what is left of torch's kernels around the blocks, and the norms in them."""

from __future__ import annotations

from dataclasses import replace

from fasteomt.stacks import Stack

PARENT = "round5_gemm"


def change(stack: Stack) -> Stack:
    on_gpu = replace(
        stack.on_gpu,
        patches="fused",
        silu_mul="fused",
        depthwise_norm="fused",
        mask_logits="fused",
        depthwise_masks="tuned",
    )
    return replace(
        stack,
        name="bf16",
        summary="BF16; attention, joint blocks, patches and head FP16; fused kernels in one CUDA graph",
        late="fp16",
        attention="fp16",
        on_gpu=on_gpu,
        norm="linear",
    )
