"""LayerNorm of the residual stream, with what was computed for it added and its tokens arranged first.

Row r of the result is made of row s = source[r] (r without `source`) of the stream:

    value = x[s] + scale * delta[s]     where s >= 0
    value = initial[-1 - s]             where s < 0: class token, registers, queries
    x_out[r] = value
    out[r] = LayerNorm(value) * weight + bias

`run(x, delta, weight, bias, eps, out, *, scale, x_out, source, initial)`, all contiguous:
x (R, C) fp32 or 16-bit; delta (R, C) 16-bit or None; weight, bias, scale (C,) fp32, scale None: 1;
out (R', C) 16-bit; x_out (R', C) fp32 or None, may be x itself where there is no `source`; source (R',) int32
or None; initial (I, C) fp32, needed where a source is negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

IMPLEMENTATIONS = ("reference", "fused")


@dataclass(frozen=True)
class Problem:
    """`rows` of the result, R'; `dtype` of the result."""

    rows: int
    channels: int
    dtype: torch.dtype
    has_delta: bool
    has_source: bool
