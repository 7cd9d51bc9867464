"""Shared by the tests of single ops on a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from fasteomt.errors import UnsupportedError
from fasteomt.model.reference import rope_periods, rope_tables
from fasteomt.ops import implementation
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target


def distance(found: Tensor, wanted: Tensor) -> float:
    """Relative, by the L2 norm."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def rotation_of(rows: Rows, head_dim: int) -> Rotation:
    """The model's, for square crops."""
    side = int(rows.patches**0.5)
    return Rotation.of(rope_tables(rope_periods(head_dim).cuda(), side, side))


def implementation_or_skip(op: str, name: str, problem: object) -> ModuleType:
    """Skips the test where this GPU or what is installed doesn't do."""
    try:
        return implementation(op, name, Target.of(torch.device("cuda")), problem)
    except UnsupportedError as reason:
        pytest.skip(str(reason))
