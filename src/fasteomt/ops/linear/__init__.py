"""A dense layer with what follows it: y = x @ weight.T + bias, then an epilogue.

`run(x, weight, bias, out, *, rows=None, epilogue="", rotation=None, rotated=0, scale=None, norm=None)`:
x (M, K) and weight (N, K) are contiguous and of one dtype, out (M, N) of that or another 16-bit one; bias is
(N,) of dtype `BIAS_DTYPE` (None: x's) or None. Epilogues:

- "": out = y.
- "gelu": out = GELU(y), the exact one, by erf.
- "rope": out = y, but the first `rotated` columns, heads of queries and keys, are turned by `rotation` in
  rows that are patches. `rows` tells which are, and must be given.
- "residual": `out` is the fp32 stream, and out += scale * y, with scale (N,) fp32.
- "norm": that, and then `norm` gets the LayerNorm of out's rows.

`rows`, where given, lets an implementation cut its tiles so that patches fill them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IMPLEMENTATIONS = ("reference", "library", "fused", "cute", "cuda")


@dataclass(frozen=True)
class Normed:
    """Where a LayerNorm goes: `out` (M, N) of x's dtype; its weight and bias (N,) fp32, and eps.

    `parts`, of `parts_for`, is room for what an implementation needs from launch to launch: it belongs to one
    problem in one configuration.
    """

    out: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    parts: Tensor


def parts_for(m: int, n: int, device: torch.device) -> Tensor:
    """Of each row and 64 columns 16 bytes, zeros: (M, N / 64 rounded up, 4) int32."""
    return torch.zeros(m, -(-n // 64), 4, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class Problem:
    """`dtype` of x and weight; `out_dtype` of a 16-bit result, `dtype` if None. `head_dim` of queries and
    keys, for "rope"."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    epilogue: str = ""
    head_dim: int = 0
    out_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "out_dtype", self.out_dtype or self.dtype)
