"""The tuner's inputs are such as our kernels take: in every configuration they pass its check."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.bench.kernel_cases import Choice, Job, check
from fasteomt.ops import attention, linear
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"),
    pytest.mark.usefixtures("gpu_of_three_processors"),
]
CPU = torch.device("cpu")
ROWS = Rows(2, 64, 5)


@pytest.mark.parametrize("epilogue", ["", "gelu", "rope", "residual"])
def test_linear(epilogue: str) -> None:
    from fasteomt.ops.linear import fused

    head_dim = 64 if epilogue == "rope" else 0
    problem = linear.Problem(ROWS.total, 192, 64, torch.float16, epilogue, head_dim)
    configs = fused.candidates(Target.of(CPU), problem)
    for config in (configs[0], configs[-1]):
        assert check(Job("linear", problem, ROWS), Choice("fused", config), CPU) is None


def test_attention() -> None:
    from fasteomt.ops.attention import fused

    problem = attention.Problem(ROWS, 1, 64, torch.float16)
    config = fused.candidates(Target.of(CPU), problem)[-1]
    assert check(Job("attention", problem, ROWS), Choice("fused", config), CPU) is None
