"""A dense layer with what follows it: y = x @ weight.T + bias, then an epilogue.

`run(x, weight, bias, out, *, rows=None, epilogue="", rotation=None, rotated=0, scale=None, norm=None)`:
x (M, K), weight (N, K) and out (M, N) are contiguous and of one dtype, bias is (N,) of dtype `BIAS_DTYPE`
(None: x's) or None. Epilogues:

- "": out = y.
- "gelu": out = GELU(y), the exact one, by erf.
- "rope": out = y, but the first `rotated` columns, heads of queries and keys, are turned by `rotation` in
  rows that are patches. `rows` tells which are, and must be given.
- "residual": `out` is the fp32 stream, and out += scale * y, with scale (N,) fp32.

`rows`, where given, lets an implementation cut its tiles so that patches fill them.

`norm`, where `Problem.norm` says so, saves the LayerNorm between two products a pass over the stream: the
first, a "residual", hands on what the second needs to apply it (`HandedOn`, `Folded`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IMPLEMENTATIONS = ("reference", "library", "fused", "cute", "cuda")


PART = 64  # columns whose mean and squares are handed on together


@dataclass(frozen=True)
class Folded:
    """A LayerNorm of x's rows before the product:

        y = (x @ weight.T - mean * sums) / sqrt(variance + eps) + bias

    The norm's own weight is in `weight`, and its bias in `bias`. parts: (M, K / PART, 2) fp32, of each PART
    values of a row the mean, and the sum of their squared distances from it. sums: (N,) fp32, of weight's
    rows.
    """

    parts: Tensor
    sums: Tensor
    eps: float


@dataclass(frozen=True)
class HandedOn:
    """What a product with a `Folded` norm takes next, written by a "residual": `copy` (M, N) of x's dtype,
    the stream as it then is; `parts` (M, N / PART, 2) fp32."""

    copy: Tensor
    parts: Tensor


@dataclass(frozen=True)
class Problem:
    """`dtype` of x, weight and, but for "residual", out; `head_dim` of queries and keys, for "rope". `norm`:
    "folded" or "handed on", see the classes of these names."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    epilogue: str = ""
    head_dim: int = 0
    norm: str = ""
