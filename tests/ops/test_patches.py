"""Patches times the flattened weights are the patch embedding's convolution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fasteomt.ops.patches import reference


@pytest.mark.parametrize(("crops", "size", "patch"), [(1, 16, 4), (3, 24, 8)])
def test_patches_are_what_the_convolution_reads(crops: int, size: int, patch: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 10, kernel_size=patch, stride=patch, bias=False)
    images = torch.randn(crops, 3, size, size)
    out = torch.empty(crops * (size // patch) ** 2, 3 * patch * patch)
    reference.run(images, out, patch)
    expected = layer(images).flatten(2).mT.flatten(0, 1)
    torch.testing.assert_close(out @ layer.weight.flatten(1).T, expected)


def test_pixels_are_rounded_once() -> None:
    images = torch.randn(2, 3, 8, 8)
    out = torch.empty(8, 48, dtype=torch.bfloat16)
    reference.run(images, out, 4)
    assert out[5].equal(images[1, :, 0:4, 4:8].flatten().bfloat16())
