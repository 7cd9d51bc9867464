"""Two FP4 codes a byte, low half first."""

from __future__ import annotations

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.formats.packing import pack, unpack


def test_the_first_code_is_the_low_half() -> None:
    codes = torch.tensor([[0x1, 0x2, 0xF, 0x0]], dtype=torch.uint8)
    assert pack(codes).tolist() == [[0x21, 0x0F]]
    assert unpack(pack(codes)).tolist() == codes.tolist()


def test_every_byte_comes_back() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(2, 16, 8)
    assert unpack(packed).shape == (2, 16, 16)
    assert torch.equal(pack(unpack(packed)), packed)


def test_odd_rows_are_refused() -> None:
    with pytest.raises(InputError, match="cannot pack 5 4-bit codes"):
        pack(torch.zeros(4, 5, dtype=torch.uint8))
