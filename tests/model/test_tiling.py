"""Geometry: where crops lie, that they cover the frame, and that averaging and resizing keep meaning."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fasteomt.errors import InputError
from fasteomt.model.tiling import MAX_CROPS, Tiling, class_map, class_scores, crops_of_frame, untile


@pytest.mark.parametrize(
    ("height", "width", "resized", "starts"),
    [
        (512, 512, (512, 512), (0,)),  # exactly one crop
        (513, 512, (513, 512), (0, 1)),  # two all but identical crops
        (300, 300, (512, 512), (0,)),
        (1440, 1900, (512, 675), (0, 163)),
        (640, 1333, (512, 1066), (0, 277, 554)),
        (600, 3000, (512, 2560), (0, 512, 1024, 1536, 2048)),
        (97, 61, (814, 512), (0, 302)),
        (1, 3, (512, 1536), (0, 512, 1024)),
    ],
)
def test_known_tilings(height: int, width: int, resized: tuple[int, int], starts: tuple[int, ...]) -> None:
    tiling = Tiling.of(height, width, 512)
    assert tiling.resized == resized
    assert tiling.starts == starts


def test_every_width_is_covered_and_agrees_with_upstreams_float_arithmetic() -> None:
    """Upstream computes starts in floats; where its last crop ends short of the edge, ours does not."""
    short = 0
    for long in range(512, 6000):
        starts = Tiling.of(512, long, 512).starts
        covered = torch.zeros(long)
        for start in starts:
            covered[start : start + 512] += 1
        assert covered.min() >= 1
        assert starts[-1] + 512 == long
        count = math.ceil(long / 512)
        overlap = count * 512 - long
        step = overlap / (count - 1) if overlap > 0 else 0
        upstream = tuple(int(j * (512 - step)) for j in range(count))
        if upstream != starts:
            short += 1
            assert all(abs(a - b) <= 1 for a, b in zip(starts, upstream, strict=True))
    assert short < 0.05 * 5500


@pytest.mark.parametrize("crop", [16, 512, 8192])
def test_number_of_crops_is_limited(crop: int) -> None:
    """For every crop size alike, and before anything of the resized frame's size is made."""
    for height, width in ((3, 3 * MAX_CROPS), (MAX_CROPS, 1)):
        assert len(Tiling.of(height, width, crop).starts) == MAX_CROPS
    for height, width in ((1, 20000), (20000, 1), (3, 3 * MAX_CROPS + 1)):
        with pytest.raises(
            InputError, match=rf"a frame of {width}x{height} pixels .* more than 256"
        ) as caught:
            Tiling.of(height, width, crop)
        assert "\n" not in str(caught.value)


def test_crops_are_cut_from_the_resized_frame() -> None:
    frame = torch.arange(64 * 160, dtype=torch.float32).reshape(1, 64, 160).expand(3, -1, -1) / (64 * 160)
    tiling = Tiling.of(64, 160, 64)
    crops = crops_of_frame(frame, tiling, (0, 0, 0), (1, 1, 1))
    assert crops.shape == (3, 3, 64, 64)
    for crop, start in zip(crops, tiling.starts, strict=True):
        assert torch.equal(crop, frame[:, :, start : start + 64])


def test_untile_averages_where_crops_overlap() -> None:
    tiling = Tiling.of(4, 6, 4)  # two crops, columns 2 and 3 in both
    scores = torch.stack([torch.full((1, 4, 4), 1.0), torch.full((1, 4, 4), 3.0)])
    assert untile(scores, tiling)[0, 0].tolist() == [1, 1, 2, 2, 3, 3]


def test_class_map_in_chunks_equals_argmax_of_the_whole() -> None:
    scores = torch.rand(37, 16, 24, generator=torch.Generator().manual_seed(0))
    whole = F.interpolate(scores[None], (50, 31), mode="bilinear")[0]
    for chunk in (1, 8, 64):
        found = class_map(scores, 50, 31, chunk=chunk)
        assert torch.equal(found.index, whole.argmax(dim=0))
        expected = whole.max(dim=0).values / whole.sum(dim=0)
        torch.testing.assert_close(found.probability, expected)


def test_equal_scores_go_to_the_first_class_and_zero_scores_stay_finite() -> None:
    found = class_map(torch.zeros(3, 4, 4), 8, 8, chunk=1)
    assert found.index.eq(0).all()
    assert found.probability.isfinite().all()


def test_scores_are_upsampled_before_they_are_squashed() -> None:
    masks = torch.tensor([[[[-10.0, 10.0]]]]).expand(1, 1, 2, 2)
    classes = torch.tensor([[[0.0, 0.0]]])
    scores = class_scores(masks, classes, 4)
    expected = F.interpolate(masks, (4, 4), mode="bilinear").sigmoid() * 0.5
    torch.testing.assert_close(scores, expected)
