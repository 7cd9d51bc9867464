"""The kernel in the interpreter: hidden sizes that fill no block, gates far from zero."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.ops.silu_mul import reference

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


@pytest.mark.parametrize("hidden", [24, 1024, 1032])
def test_kernel_equals_reference(hidden: int) -> None:
    from fasteomt.ops.silu_mul import fused

    torch.manual_seed(0)
    x = (torch.randn(3, 2 * hidden) * 5).half()
    x[0, 0], x[1, 0] = 200, -200  # exp overflows
    out, expected = torch.empty(2, 3, hidden, dtype=torch.float16)
    fused.run(x, out)
    reference.run(x, expected)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=1e-4)
