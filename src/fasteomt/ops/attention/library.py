"""`scaled_dot_product_attention`: cuDNN's on a GPU and nothing else, PyTorch's own on a CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, bfloat16, float16
from torch.nn.attention import SDPBackend, sdpa_kernel

from fasteomt.ops.attention import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

WRITES_OUT = False


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.rope:
        return "turns nothing: run the op 'rope' before it"
    if problem.out_dtype != problem.dtype:
        return f"gives what it takes, not {problem.out_dtype} of {problem.dtype}"
    if problem.half_accumulate:
        return "half_accumulate: use 'fused'"
    if target.arch == "cpu":
        return None
    if target.sm < 80:
        return "cuDNN's attention needs sm_80 or newer"
    if problem.dtype not in (float16, bfloat16):
        return f"cuDNN's attention of {problem.dtype}: float16 or bfloat16 only"
    if problem.head_dim % 8 or problem.head_dim > 128:
        return f"cuDNN's attention of head_dim {problem.head_dim}: multiples of 8 up to 128 only"
    return None


def run(qkv: Tensor, out: Tensor | None, heads: int, rows: Rows, rotation: Rotation | None = None) -> Tensor:
    """Return a new tensor (rows.total, heads D), which is the graph's if captured; `out` isn't touched."""
    split = qkv.unflatten(0, (rows.crops, -1)).unflatten(2, (3, heads, -1))
    q, k, v = split.permute(2, 0, 3, 1, 4)
    if qkv.is_cuda:
        # Without the choice PyTorch may take another, and nobody would know which was timed.
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            found = F.scaled_dot_product_attention(q, k, v)
    else:
        found = F.scaled_dot_product_attention(q, k, v)
    # Backends lay their result out like the queries, tokens before heads: then this is a view.
    return found.transpose(1, 2).reshape(rows.total, -1)
