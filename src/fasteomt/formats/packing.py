"""Two 4-bit codes in a byte, the first in the low half: how FP4 operands lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.errors import InputError


def pack(codes: Tensor) -> Tensor:
    """(..., K) uint8 codes below 16 -> (..., K / 2) uint8.

    Raises:
        InputError: an odd K.
    """
    if codes.shape[-1] % 2:
        raise InputError(f"cannot pack {codes.shape[-1]} 4-bit codes a row: an even number is needed")
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """(..., K / 2) uint8 -> (..., K) uint8 codes; inverse of `pack`."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
