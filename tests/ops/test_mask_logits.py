"""Both plain forms against an einsum over images."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from fasteomt.ops.grid import Grid
from fasteomt.ops.mask_logits import library, reference


@pytest.mark.parametrize("implementation", [reference, library])
@pytest.mark.parametrize("grid", [Grid(1, 3, 0), Grid(3, 3, 1), Grid(2, 2, 2)])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_products_are_in_raster_order(implementation: ModuleType, grid: Grid, out_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    queries_per_crop, dim, side = 5, 16, grid.resolution
    queries = torch.randn(grid.crops * queries_per_crop, dim).bfloat16()
    images = torch.randn(grid.crops, side, side, dim).bfloat16()
    features = images.flatten(0, 2)[grid.raster()]
    out = torch.empty(grid.crops, queries_per_crop, side, side, dtype=out_dtype)
    implementation.run(queries, features, out, grid)
    of_crops = queries.float().view(grid.crops, queries_per_crop, dim)
    expected = torch.einsum("bqc,byxc->bqyx", of_crops, images.float())
    tolerance = 2**-8 if out_dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=1e-5)
