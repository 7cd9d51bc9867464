"""Patches on a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch

from fasteomt.engine.graph import capture
from fasteomt.ops import implementation
from fasteomt.ops.patches import Problem, reference
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("crops", "size", "patch"), [(2, 512, 16), (3, 640, 16), (1, 512, 32), (2, 518, 14)])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_the_reference(
    crops: int, size: int, patch: int, source: torch.dtype, dtype: torch.dtype
) -> None:
    images = torch.randn(crops, 3, size, size, device="cuda").to(source)
    problem = Problem(crops, size, patch, dtype)
    fused = implementation("patches", "fused", Target.of(images.device), problem)
    shape = (2, crops * (size // patch) ** 2, 3 * patch * patch)
    out, expected = torch.zeros(shape, dtype=dtype, device="cuda")
    fused.run(images, out, patch)
    reference.run(images, expected, patch)
    assert torch.equal(out, expected)


def test_a_replay_cuts_what_is_there_by_then() -> None:
    images = torch.zeros(2, 3, 512, 512, device="cuda")
    out, expected = torch.zeros(2, 2048, 768, dtype=torch.bfloat16, device="cuda")
    fused = implementation("patches", "fused", Target.of(images.device), Problem(2, 512, 16, out.dtype))
    replay = capture(lambda: fused.run(images, out, 16))
    images.normal_()
    replay.replay()
    reference.run(images, expected, 16)
    assert torch.equal(out, expected)
