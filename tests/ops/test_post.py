"""The reference against the functions that the fp32 engine and the predictor use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fasteomt.model.tiling import Tiling, class_map, class_scores, untile
from fasteomt.ops.geometry import Geometry
from fasteomt.ops.post import UNIT, Problem, reference
from fasteomt.ops.target import CPU, Target

SIZE, RATIO = 32, 4


def table(tiling: Tiling, crops: int) -> Tensor:
    geometry = Geometry(tiling.height, tiling.width, tiling.resized, tiling.starts, tiling.axis)
    return geometry.table(crops)


@pytest.mark.parametrize(
    ("height", "width", "crops"),
    [
        (65, 49, 2),
        (49, 65, 2),
        (30, 70, 3),  # 21:9
        (32, 32, 1),
        (90, 90, 1),
        (33, 32, 2),  # two all but identical crops
        (5, 13, 3),
    ],
)
@pytest.mark.parametrize(("classes", "queries"), [(1, 1), (2, 100), (300, 3)])
def test_equals_the_model(height: int, width: int, crops: int, classes: int, queries: int) -> None:
    torch.manual_seed(0)
    tiling = Tiling.of(height, width, SIZE)
    assert len(tiling.starts) == crops
    masks = 3 * torch.randn(crops, queries, SIZE // RATIO, SIZE // RATIO)
    logits = torch.randn(crops, queries, classes + 1)
    found = class_map(untile(class_scores(masks, logits, SIZE), tiling), height, width)

    ids = torch.randperm(classes, dtype=torch.int32) + 7
    out = torch.zeros(1, height * width + 3, dtype=torch.uint16)
    sums = torch.full((1, classes, 2), -1)
    weights, scores = torch.empty(crops, queries, classes), torch.empty(crops, classes, SIZE, SIZE)
    reference.run(masks, logits, table(tiling, crops + 1)[None], ids, weights, scores, out, sums)

    index = found.index.flatten()
    assert torch.equal(out[0, : height * width].int(), ids[index])
    assert out[0, height * width :].int().tolist() == [0, 0, 0]
    areas = torch.bincount(index, minlength=classes)
    assert torch.equal(sums[0, :, 0], areas)
    expected = torch.bincount(index, weights=found.probability.flatten().double(), minlength=classes)
    difference = (sums[0, :, 1] / UNIT - expected).abs()
    assert (difference <= (0.5 / UNIT + 1e-6) * areas).all()


def test_frames_of_one_batch_keep_to_their_own_crops() -> None:
    """The second has fewer crops than the first; what lies in its unused one has no say."""
    torch.manual_seed(0)
    wide, square = Tiling.of(20, 35, SIZE), Tiling.of(30, 30, SIZE)
    masks, logits = torch.randn(4, 3, 8, 8), torch.randn(4, 3, 5)
    ids = torch.arange(4, dtype=torch.int32)
    outs = torch.zeros(3, 1000, dtype=torch.uint8)
    tables = torch.stack([table(wide, 2), table(square, 2)])
    reference.run(masks, logits, tables, ids, torch.empty(4, 3, 4), torch.empty(4, 4, SIZE, SIZE), outs[:2])
    one = torch.empty(1, 3, 4), torch.empty(1, 4, SIZE, SIZE)
    reference.run(masks[2:3], logits[2:3], table(square, 2)[None], ids, *one, outs[2:])
    assert torch.equal(outs[1], outs[2]) and not torch.equal(outs[0], outs[1])


def test_no_pixel_lies_in_three_crops() -> None:
    """The kernels take it for granted: what a crop shares, it shares with one neighbour."""
    for long in range(SIZE, 12 * SIZE):
        starts = Tiling.of(SIZE, long, SIZE).starts
        assert all(third - first >= SIZE for first, third in zip(starts, starts[2:], strict=False))


def test_what_the_kernels_cannot_do_is_said() -> None:
    fused = pytest.importorskip("fasteomt.ops.post.fused")
    hopper = Target.named("sm_90")
    assert fused.unsupported(hopper, Problem(2, 100, 2, 128, 512)) is None
    assert "needs a GPU" in fused.unsupported(CPU, Problem(2, 100, 2, 128, 512))
    for resolution in (32, 100, 512):
        assert "are not 2, 4 or 8 times" in fused.unsupported(hopper, Problem(2, 100, 2, resolution, 512))
    assert "2^31 elements" in fused.unsupported(hopper, Problem(1, 100, 8192, 128, 512))
