"""The reference against the oracle's ScaleBlock."""

from __future__ import annotations

import pytest
import torch

from fasteomt.model.reference import ScaleBlock
from fasteomt.ops.depthwise_norm import reference
from fasteomt.ops.grid import Grid


@pytest.mark.parametrize("grid", [Grid(1, 3, 0), Grid(3, 3, 1), Grid(2, 2, 2)])
@torch.no_grad()
def test_equals_the_second_half_of_a_scale_block(grid: Grid) -> None:
    torch.manual_seed(0)
    dim = 12
    block = ScaleBlock(dim)
    block.norm.weight.normal_()
    block.norm.bias.normal_()
    images = torch.randn(grid.crops, dim, grid.resolution, grid.resolution)
    rows = images.permute(0, 2, 3, 1).flatten(0, 2)[grid.raster()]
    out = torch.empty(grid.pixels, dim)
    weight = block.conv2.weight.permute(2, 3, 0, 1).reshape(9, dim)
    reference.run(rows, weight, block.norm.weight, block.norm.bias, block.norm.eps, out, grid)
    expected = block.norm(block.conv2(images).permute(0, 2, 3, 1)).flatten(0, 2)
    torch.testing.assert_close(out, expected[grid.raster()])
