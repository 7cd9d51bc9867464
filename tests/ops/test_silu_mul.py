"""The reference against the formula."""

from __future__ import annotations

import torch

from fasteomt.ops.silu_mul import reference


def test_gates_the_second_half_by_the_first() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 22).bfloat16()
    out = torch.empty(5, 11, dtype=torch.bfloat16)
    reference.run(x, out)
    gate, value = x[:, :11].double(), x[:, 11:].double()
    expected = gate / (1 + torch.exp(-gate)) * value
    torch.testing.assert_close(out, expected.bfloat16(), rtol=2**-8, atol=0)
