"""The Triton GEMM in the interpreter: tails of rows and columns, crops of both parities, several programs."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from fasteomt.model.reference import rope_periods, rope_tables
from fasteomt.ops.linear import reference
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"),
    pytest.mark.usefixtures("gpu_of_three_processors"),
]

EPILOGUES = ("", "gelu", "rope", "residual")


def check(
    rows: Rows | None, m: int, n: int, k: int, epilogue: str, config: Any, *, bias: bool = True
) -> None:
    from fasteomt.ops.linear import fused

    torch.manual_seed(0)
    head_dim, side = 16, 8
    x = torch.randn(m, k).half()
    weight = (torch.randn(n, k) / k**0.5).half()
    options: dict[str, Any] = {"rows": rows, "epilogue": epilogue}
    if epilogue == "rope":
        assert rows is not None
        rotation = Rotation.of(rope_tables(rope_periods(head_dim), side, rows.patches // side))
        options |= {"rotation": rotation, "rotated": n // 3 // head_dim * head_dim}
    if epilogue == "residual":
        options["scale"] = torch.randn(n)
    # The matrix lies within a larger one, whose other elements must stay what they are.
    around = torch.full((m + 2, n), 7.0, dtype=torch.float32 if epilogue == "residual" else torch.float16)
    out = around[1:-1]
    out.copy_(torch.randn(m, n))
    wanted = out.clone()
    vector = torch.randn(n) if bias else None
    reference.run(x, weight, vector, wanted, **options)
    fused.run(x, weight, vector, out, config=config, **options)
    torch.testing.assert_close(out, wanted, rtol=2e-3, atol=1e-3)
    assert (around[0] == 7).all() and (around[-1] == 7).all()


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [Rows(1, 64, 5), Rows(2, 128, 5), Rows(3, 64, 37), Rows(2, 72, 3)])
def test_rows_of_crops(rows: Rows, epilogue: str) -> None:
    from fasteomt.ops.linear.fused import Config

    check(rows, rows.total, 144, 48, epilogue, Config(64, 64, 32, 4, 2))


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_tiles_that_leave_in_parts(epilogue: str) -> None:
    from fasteomt.ops.linear.fused import Config

    check(Rows(2, 64, 5), 138, 272, 32, epilogue, Config(64, 256, 32, 4, 2))


@pytest.mark.parametrize("m", [1, 64, 100, 200])
@pytest.mark.parametrize("epilogue", ["", "residual"])
def test_any_number_of_rows(m: int, epilogue: str) -> None:
    from fasteomt.ops.linear.fused import Config

    check(None, m, 48, 16, epilogue, Config(64, 64, 32, 4, 2, resident=2), bias=False)


def test_gelu_is_the_exact_one_of_small_and_large_values() -> None:
    """One product of a number by one: gelu of it alone, to within fp16's rounding."""
    from fasteomt.ops.linear import fused

    values = torch.cat([torch.linspace(-8, 8, 64 * 32 - 4), torch.tensor([0.0, -60000, 60000, float("nan")])])
    x = torch.zeros(2048, 16).half()
    x[:, 0] = values
    weight = torch.zeros(16, 16).half()
    weight[:, 0] = 1
    out = torch.empty(2048, 16).half()
    fused.run(x, weight, None, out, epilogue="gelu", config=fused.Config(64, 64, 32, 4, 2))
    wanted = torch.nn.functional.gelu(x[:, 0].double())
    torch.testing.assert_close(out[:, 3].double(), wanted, rtol=5.5e-4, atol=1e-6, equal_nan=True)
