"""Tables of frames' geometry."""

from __future__ import annotations

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.ops.geometry import HEAD, Geometry

WIDE = Geometry(1440, 1900, (512, 675), (0, 163), 1)


def test_a_table_holds_all_and_zeros_after_the_last_crop() -> None:
    table = WIDE.table(4)
    assert table.dtype == torch.int32 and table.device.type == "cpu"
    assert table.tolist() == [1440, 1900, 512, 675, 1, 2, 0, 163, 0, 0]
    assert len(WIDE.table(2)) == HEAD + 2


def test_too_many_crops_are_refused() -> None:
    with pytest.raises(InputError, match="2 crops, room for 1"):
        WIDE.table(1)
