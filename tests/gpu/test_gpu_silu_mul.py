"""The gate of SwiGLU on a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch

from fasteomt.engine.graph import capture
from fasteomt.ops import implementation
from fasteomt.ops.silu_mul import Problem, reference
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("rows", "hidden"), [(2058, 5120), (2258, 8192), (3087, 1536), (7, 520)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_the_reference(rows: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(rows, 2 * hidden, device="cuda") * 4).to(dtype)
    x[0, :2] = torch.tensor([200.0, -200.0])  # where exp overflows
    fused = implementation("silu_mul", "fused", Target.of(x.device), Problem(rows, hidden, dtype))
    out, expected = torch.empty(2, rows, hidden, dtype=dtype, device="cuda")
    fused.run(x, out)
    reference.run(x, expected)
    torch.testing.assert_close(out, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_a_replay_gates_what_is_there_by_then() -> None:
    x = torch.zeros(2058, 2048, dtype=torch.bfloat16, device="cuda")
    out, expected = torch.empty(2, 2058, 1024, dtype=torch.bfloat16, device="cuda")
    fused = implementation("silu_mul", "fused", Target.of(x.device), Problem(2058, 1024, x.dtype))
    replay = capture(lambda: fused.run(x, out))
    x.normal_()
    fused.run(x, expected)
    replay.replay()
    assert torch.equal(out, expected)
