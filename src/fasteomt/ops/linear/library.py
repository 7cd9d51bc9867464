"""torch's GEMM: cuBLAS, or the CPU's library."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.ops.linear import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = None


def unsupported(target: Target, problem: Problem) -> str | None:
    if problem.out_dtype != problem.dtype:
        return f"gives what it takes, not {problem.out_dtype} of {problem.dtype}"
    if problem.epilogue in ("rope", "residual", "norm"):
        return f"no '{problem.epilogue}' after a GEMM: compute it in an op of its own"
    return None


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    rows: Rows | None = None,
    epilogue: str = "",
    rotation: Rotation | None = None,
    rotated: int = 0,
    scale: Tensor | None = None,
) -> None:
    """See `ops.linear`."""
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)
    if epilogue == "gelu":
        # cuBLASLt could do it in the same kernel, but by tanh.
        torch.ops.aten.gelu_(out)
