"""The residual add, the arrangement of tokens and the LayerNorm on a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch
from gpu_samples import distance
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.ops import implementation
from fasteomt.ops.add_norm import Problem, reference
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

ROWS = [Rows(2, 1024, 5), Rows(2, 1024, 105), Rows(3, 256, 5)]


def source_of(rows: Rows) -> Tensor:
    """Patches of all crops, then from `initial` the extras of each."""
    patch = rows.patch_of_row()
    crop = torch.arange(rows.total) // rows.tokens
    extra = torch.arange(rows.total) - torch.tensor([rows.extra_start(int(c)) for c in crop])
    return torch.where(patch >= 0, crop * rows.patches + patch, -1 - extra).int().cuda()


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("channels", [192, 384, 768, 1024, 1280, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["norm", "residual", "scaled", "embedded"])
def test_equals_the_reference(rows: Rows, channels: int, dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(0)
    source = source_of(rows) if kind == "embedded" else None
    x = torch.randn(rows.total, channels, device="cuda") + 3
    if kind == "embedded":
        x = x[: rows.crops * rows.patches].to(dtype)
    added = torch.randn(rows.total, channels, device="cuda").to(dtype)
    delta = added if kind in ("residual", "scaled") else None
    scale, weight, bias = torch.randn(3, channels, device="cuda")
    given = {
        "scale": scale if kind == "scaled" else None,
        "source": source,
        "initial": torch.randn(rows.extras, channels, device="cuda") if kind == "embedded" else None,
    }
    problem = Problem(rows.total, channels, dtype, delta is not None, source is not None)
    fused = implementation("add_norm", "fused", Target.of(x.device), problem)
    out, x_out = (
        torch.empty(rows.total, channels, dtype=dtype, device="cuda"),
        torch.empty_like(added).float(),
    )
    truth, x_truth = torch.empty_like(x_out), torch.empty_like(x_out)
    reference.run(x, delta, weight, bias, 1e-5, truth, x_out=x_truth, **given)
    fused.run(x, delta, weight, bias, 1e-5, out, x_out=x_out, **given)
    torch.testing.assert_close(x_out, x_truth, rtol=1e-6, atol=1e-6)
    assert distance(out, truth) <= 2 * distance(truth.to(dtype), truth)


def test_a_replay_adds_in_place() -> None:
    torch.manual_seed(0)
    x = torch.zeros(2058, 1024, device="cuda")
    delta = torch.randn(2058, 1024, device="cuda").bfloat16()
    weight, bias = torch.randn(2, 1024, device="cuda")
    out = torch.empty_like(delta)
    fused = implementation(
        "add_norm", "fused", Target.of(x.device), Problem(2058, 1024, out.dtype, True, False)
    )
    replay = capture(lambda: fused.run(x, delta, weight, bias, 1e-5, out, x_out=x))
    x.zero_()
    for _ in range(3):
        replay.replay()
    torch.testing.assert_close(x, 3 * delta.float(), rtol=1e-6, atol=1e-6)
