"""One frame through unmodified LightlyTrain, in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fasteomt.checkpoint import random_checkpoint
from fasteomt.model.spec import ModelSpec
from fasteomt.peers.upstream import open_model
from fasteomt.peers.upstream_video import MODES, STAGES, Mode, Segmented, segment_timed, upstream_script

pytest.importorskip("lightly_train", reason="needs the extra 'train'")

CPU = torch.device("cpu")
BGR = np.random.default_rng(2).integers(0, 255, (40, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model() -> Any:
    spec = ModelSpec.from_name("vitt16", image_size=(64, 64), class_ids=(7, 3), class_names=("a", "b"))
    return open_model(random_checkpoint(spec), CPU)


def test_both_modes_give_predicts_mask_and_the_time_of_each_stage(model: Any) -> None:
    expected = model.predict(torch.from_numpy(BGR[:, :, ::-1].copy()).permute(2, 0, 1)).numpy()
    assert set(np.unique(expected)) <= {7, 3}
    for mode in MODES:
        segmented, times = segment_timed(mode, model, CPU, BGR)
        np.testing.assert_array_equal(segmented.mask, expected)
        np.testing.assert_array_equal(segmented.rgb, BGR[:, :, ::-1])
        assert tuple(times) == STAGES and min(times.values()) > 0
        assert times["model"] > times["prep"]


def test_confidence_is_the_mean_share_of_the_winning_class(model: Any) -> None:
    segmented = upstream_script(model, CPU, BGR, lambda: None)
    assert set(segmented.confidence) == set(np.unique(segmented.mask).tolist())
    # Of two classes the winner has at least half.
    assert all(0.5 <= value <= 1 for value in segmented.confidence.values())


def test_a_mode_that_marks_no_stage_of_its_own_is_no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Mode("marks nothing", lambda model, device, bgr, mark: Segmented(bgr, bgr[..., 0], {}))
    monkeypatch.setitem(MODES, "silent", silent)
    with pytest.raises(ValueError, match="zip"):
        segment_timed("silent", None, CPU, BGR)
