"""Rows of results.json from real calls on the CPU: what is measured, what has no time and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import CPU, SMALL, complaints

from fasteomt.bench.ceilings import Ceilings
from fasteomt.bench.rows import (
    looped,
    model_floor,
    model_rows,
    training_rows,
    units,
    video_rows,
)
from fasteomt.errors import InputError
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.stacks import get_stack


def test_stacks_and_peers_are_timed_on_the_same_crops() -> None:
    names = ["graph_bf16", "fp32", "bf16"]
    rows = model_rows(SMALL, "small", CPU, names, crops=2, baseline="fp32", ceilings=None, seconds=0.02)
    assert [row.stack for row in rows] == names
    absent, reference, fast = rows
    assert absent.median is None
    assert "CUDA" in (absent.note or "")
    assert reference.baseline is None
    assert fast.baseline == "fp32"
    assert fast.plan == get_stack("bf16").plan(SMALL.spec, target.CPU).hash
    assert reference.median is not None and reference.n == 3
    assert complaints(rows) == []
    assert units(absent) == "-"
    assert units(reference).endswith(" ms")


def test_floor_is_of_the_plans_formats() -> None:
    spec = ModelSpec.from_name("vitl16")
    peaks = {"fp32": 1e14, "bf16": 7.38e14}
    ceilings = Ceilings("a GPU", "2026-01-01T00:00:00+00:00", "2", 4e12, peaks)
    everything = model_floor(spec, None, 2, ceilings)
    assert everything == pytest.approx(2.13e-3, rel=0.01)
    plan = get_stack("fp32").plan(spec, target.CPU)
    assert model_floor(spec, plan, 2, ceilings) == pytest.approx(7.38 * everything)


def test_training_is_counted_in_images() -> None:
    (row,) = training_rows(SMALL, "small", CPU, ["R0_fp32"], batch=2, baseline=None, seconds=0.05)
    assert row.metric == "train_img_s"
    assert row.min is not None and row.median is not None and row.max is not None
    assert row.min <= row.median <= row.max
    assert complaints([row]) == []


def test_videos_are_looped_and_split_into_stages(clip: Path) -> None:
    rows = video_rows(SMALL, "small", CPU, "upstream_predict", clip, frames=7, rounds=2)
    assert [row.metric for row in rows] == ["video_fps", *["frame_ms"] * 4]
    assert [row.phase for row in rows] == [None, "prep", "model", "post", None]
    fps, prep, model, post, whole = (row.median or 0 for row in rows)
    assert prep + model + post == pytest.approx(whole, rel=0.5)
    assert fps <= 1.5 * 1000 / whole
    assert complaints(rows) == []


def test_loop_repeats_the_frames_in_order(clip: Path) -> None:
    frames = looped(clip)
    seen = [round(float(next(frames).mean()) / 10) for _ in range(7)]
    assert seen == [4, 9, 14, 4, 9, 14, 4]


def test_what_is_no_video_ends_the_loop(tmp_path: Path) -> None:
    (tmp_path / "no.mp4").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no frame"):
        next(looped(tmp_path / "no.mp4"))
