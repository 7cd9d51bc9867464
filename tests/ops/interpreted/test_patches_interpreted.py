"""The kernel in the interpreter: patches of a power of two and not, rows that fill no program."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.ops.patches import reference

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


@pytest.mark.parametrize(("crops", "size", "patch"), [(3, 48, 16), (1, 28, 14), (2, 64, 32)])
def test_kernel_equals_reference(crops: int, size: int, patch: int) -> None:
    from fasteomt.ops.patches import fused

    torch.manual_seed(0)
    images = torch.randn(crops, 3, size, size)
    out, expected = torch.zeros(2, crops * (size // patch) ** 2, 3 * patch**2, dtype=torch.float16)
    fused.run(images, out, patch)
    reference.run(images, expected, patch)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
