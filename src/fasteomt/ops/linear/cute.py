"""QuACK's GEMM in the CuTe DSL, with bias and GELU by erf in its epilogue."""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fasteomt.errors import need
from fasteomt.ops.linear import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = torch.float32
_COLUMNS = (208, 192, 160, 128)  # of QuACK's own tiles of 128 rows for sm_90 whose epilogue overlaps products


def unsupported(target: Target, problem: Problem) -> str | None:
    if target.sm < 90:
        return "needs sm_90 or newer"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"{problem.dtype}: float16 or bfloat16 only"
    if problem.out_dtype != problem.dtype:
        return f"gives what it takes, not {problem.out_dtype} of {problem.dtype}"
    if problem.epilogue in ("rope", "residual", "norm"):
        return f"no epilogue '{problem.epilogue}': use 'fused', or compute it in an op of its own"
    if problem.n % 16 or problem.k % 16:
        return f"N and K must be multiples of 16, not {problem.n} and {problem.k}"
    if find_spec("quack") is None:
        return "needs package 'quack-kernels': pip install 'fasteomt[kernels]'"
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
    """See `ops.linear`; the first call for a dtype, an epilogue and a tile compiles for seconds."""
    need("quack.gemm_interface", extra="kernels").gemm_act(
        x,
        weight.T,
        bias=bias,
        activation="gelu_erf" if epilogue == "gelu" else None,
        postact_out=out,
        store_preact=False,
        tuned=False,
        config=_config(Target.of(x.device), *out.shape),
    )


@cache  # QuACK knows a launch by its configuration's identity, so each must live on
def _config(target: Target, m: int, n: int) -> Any:
    """On sm_90 the tile whose whole rounds waste least, elsewhere (None) QuACK's default."""
    if target.sm != 90:
        return None
    tiles = math.ceil(m / 128)
    columns = min(
        _COLUMNS, key=lambda size: math.ceil(tiles * math.ceil(n / size) / target.processors) * size
    )
    return need("quack.gemm_config", extra="kernels").GemmConfig(
        tile_m=128, tile_n=columns, pingpong=True, cluster_m=2, cluster_n=1, is_dynamic_persistent=False
    )
