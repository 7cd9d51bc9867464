"""The batch probe, and its way through LightlyTrain's own steps."""

from __future__ import annotations

import pytest

from fasteomt.compat import lightly_training
from fasteomt.errors import UnsupportedError


@pytest.mark.parametrize("capacity", [1, 2, 7, 13, 16, 17, 31, 66, 500])
@pytest.mark.parametrize("limit", [1, 9, 40, 3672])
def test_probe_finds_the_largest_batch(capacity: int, limit: int) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= capacity

    best = min(capacity, limit)
    found = lightly_training.search(fits, start=min(16, limit), limit=limit)
    assert best - max(1, best // 8) <= found <= best and (found == best or best > 8)
    assert max(tried) <= limit and len(tried) == len(set(tried)) <= 12


def test_probe_reports_a_model_that_never_fits() -> None:
    with pytest.raises(UnsupportedError, match="not one image fits"):
        lightly_training.search(lambda batch: False, start=16, limit=100)


def test_probe_step_runs_upstreams_steps() -> None:
    """Every private name that the probe uses exists, and the arguments fit."""
    step, default = lightly_training._steps(
        "dinov3/vitt16-eomt",
        classes={0: "background", 1: "head"},
        model_args={"loss_num_points": 64, "backbone_weights": "left out"},
        transform_args={"image_size": (32, 32)},
        precision="32-true",
        crops=2,
    )
    step(2)
    assert default == lightly_training.DEFAULT_BATCH_SIZE
