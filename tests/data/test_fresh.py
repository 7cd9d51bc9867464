"""Images drawn in the background are the generator's own, in order."""

from __future__ import annotations

import numpy as np
import pytest

from fasteomt.data.dataset import open_dataset
from fasteomt.data.fresh import FreshHeads, fresh_head, largest_side
from fasteomt.data.synth import write_dataset

SIZE = (160, 120)


def test_fresh_images_are_those_that_synth_stores(tmp_path) -> None:
    write_dataset(tmp_path / "data", train=4, valid=0, size=SIZE, seed=3, workers=1)
    for index, sample in enumerate(open_dataset(tmp_path / "data", "train")):
        fresh = fresh_head(3, "train", SIZE, index)
        assert np.array_equal(fresh.mask, sample.mask())
        # The same JPEG, perhaps through another decoder.
        assert np.abs(fresh.rgb.astype(int) - sample.rgb()).max() <= 3
        assert max(fresh.mask.shape) <= largest_side(*SIZE)
        assert fresh.points.min() >= 0
        assert (fresh.points < fresh.mask.shape).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_stream_comes_in_order_and_ends_when_left(workers) -> None:
    with FreshHeads(3, SIZE, workers, first=1, step=2) as fresh:
        taken = fresh.take(3, least=3)
    for one, index in zip(taken, (1, 3, 5), strict=True):
        assert np.array_equal(one.mask, fresh_head(3, "train", SIZE, index).mask)


def test_failure_of_a_process_is_raised() -> None:
    with FreshHeads(3, (0, 0), 1) as fresh, pytest.raises(Exception, match=r".+"):
        fresh.take(1, least=1)
