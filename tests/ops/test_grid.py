"""Rows are where ConvTransposes written as matrix products put pixels."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from fasteomt.ops.grid import Grid

GRIDS = [Grid(1, 3, 0), Grid(2, 4, 1), Grid(3, 2, 2), Grid(2, 5, 2), Grid(1, 3, 3)]


@pytest.mark.parametrize("grid", GRIDS)
def test_every_pixel_has_one_row(grid: Grid) -> None:
    side = grid.resolution
    rows = [grid.row(crop, y, x) for crop in range(grid.crops) for y in range(side) for x in range(side)]
    assert sorted(rows) == list(range(grid.pixels))
    assert grid.raster()[rows].tolist() == list(range(grid.pixels))


@pytest.mark.parametrize("grid", GRIDS)
def test_rows_are_those_of_a_chain_of_products(grid: Grid) -> None:
    torch.manual_seed(0)
    channels = [5, 4, 6, 3][: grid.level + 1]
    images = torch.randn(grid.crops, channels[0], grid.side, grid.side)
    rows = images.permute(0, 2, 3, 1).flatten(0, 2)
    for inner, outer in pairwise(channels):
        layer = nn.ConvTranspose2d(inner, outer, kernel_size=2, stride=2, bias=False)
        images = layer(images)
        product = rows @ layer.weight.permute(2, 3, 1, 0).reshape(4 * outer, inner).T
        rows = product.view(-1, outer)
    raster = images.permute(0, 2, 3, 1).flatten(0, 2)
    torch.testing.assert_close(rows, raster[grid.raster()])


def test_images_are_viewed_in_the_order_of_rows() -> None:
    grid = Grid(2, 3, 2)
    images = torch.randn(2, 7, grid.resolution, grid.resolution)
    view = grid.in_row_order(images)
    assert view.shape == (2, 7, 3, 3, 2, 2, 2, 2)
    assert view.data_ptr() == images.data_ptr()
    rows = view.flatten(2)
    assert rows[1, 4, grid.row(0, 7, 10)] == images[1, 4, 7, 10]
