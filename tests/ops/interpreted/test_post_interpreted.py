"""The kernels in the interpreter: one to three crops along either side, frames smaller and larger than them,
tiles that aren't full, few classes and many."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.ops.geometry import Geometry
from fasteomt.ops.post import UNIT, reference

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"),
    pytest.mark.usefixtures("gpu_of_three_processors"),
]

WIDE = Geometry(30, 67, (24, 53), (0, 14, 29), 1)
TALL = Geometry(41, 30, (32, 24), (0, 8), 0)
SMALL = Geometry(7, 9, (24, 30), (0, 6), 1)
TINY = Geometry(8, 8, (24, 24), (0,), 1)
SQUARE = Geometry(24, 24, (24, 24), (0,), 1)


@pytest.mark.parametrize(
    ("frames", "ratio", "queries", "classes", "masks_dtype", "out_dtype"),
    [
        ((WIDE,), 4, 3, 2, torch.float32, torch.uint8),
        ((TALL,), 2, 1, 1, torch.float16, torch.uint16),
        ((SMALL, TALL), 4, 2, 3, torch.float32, torch.int32),
        ((SQUARE,), 8, 5, 8, torch.float32, torch.uint8),
        ((SQUARE, TALL), 4, 35, 9, torch.float16, torch.uint8),
        ((TINY,), 4, 3, 258, torch.float32, torch.uint16),
    ],
)
def test_kernels_equal_reference(
    frames: tuple[Geometry, ...],
    ratio: int,
    queries: int,
    classes: int,
    masks_dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> None:
    from fasteomt.ops.post import fused

    torch.manual_seed(0)
    per_frame = max(len(frame.starts) for frame in frames)
    crops, size = per_frame * len(frames), 24
    masks = (4 * torch.randn(crops, queries, size // ratio, size // ratio)).to(masks_dtype)
    if queries > 1:
        masks[0, 0] = -200  # and no overflow
    logits = torch.randn(crops, queries, classes + 1)
    tables = torch.stack([frame.table(per_frame) for frame in frames])
    ids = torch.arange(classes, dtype=torch.int32).flip(0)
    capacity = max(frame.height * frame.width for frame in frames) + 5
    found = []
    for module in (reference, fused):
        weights = torch.full((crops, queries, classes), torch.nan)
        scores = torch.full((crops, classes, size, size), torch.nan)
        out = torch.full((len(frames), capacity), 77).to(out_dtype)
        sums = torch.full((len(frames), classes, 2), -1)
        module.run(masks, logits, tables, ids, weights, scores, out, sums)
        found.append((weights, scores, out.int(), sums))
    (weights, scores, out, sums), (weights_found, scores_found, out_found, sums_found) = found
    torch.testing.assert_close(weights_found, weights)
    torch.testing.assert_close(scores_found, scores, rtol=2e-5, atol=1e-6)
    # Classes closer than that may change places.
    assert (out != out_found).sum() <= 2
    assert (sums[..., 0] - sums_found[..., 0]).abs().sum() <= 4
    assert sums_found[..., 0].sum(1).tolist() == [frame.height * frame.width for frame in frames]
    torch.testing.assert_close(sums_found.double(), sums.double(), rtol=1e-4, atol=2.0 * UNIT)


def test_without_sums_and_the_first_of_equal_classes_wins() -> None:
    from fasteomt.ops.post import fused

    masks, logits = torch.zeros(1, 1, 12, 12), torch.zeros(1, 1, 4)
    out = torch.zeros(1, 24 * 24, dtype=torch.uint8)
    scratch = torch.empty(1, 1, 3), torch.empty(1, 3, 24, 24)
    ids = torch.tensor([7, 8, 9], dtype=torch.int32)
    fused.run(masks, logits, SQUARE.table(1)[None], ids, *scratch, out)
    assert (out == 7).all()
