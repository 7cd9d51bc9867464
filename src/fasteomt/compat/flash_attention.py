"""The private names of flash-attn-4 4.0.0b36 that fasteomt touches.

Its public function can't write into a given tensor.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from fasteomt.errors import need

PRIVATE_NAMES = {"flash_attn.cute.interface": ("_flash_attn_fwd",)}


def installed() -> bool:
    """Whether the package is there; doesn't import its kernels' compiler."""
    return find_spec("flash_attn") is not None and find_spec("flash_attn.cute") is not None


def forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    """softmax(q k^T / sqrt(D)) v into `out`; all (B, N, heads, D), 16 bit, any strides but the last 1.

    The first call for a head_dim, dtype and GPU compiles for seconds.

    Raises:
        UnsupportedError: flash-attn-4 is not installed.
    """
    need("flash_attn.cute.interface", extra="kernels")._flash_attn_fwd(q, k, v, out=out)
