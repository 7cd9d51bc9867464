"""What follows from measured rows and gates, and the seal over it."""

from __future__ import annotations

import hashlib
import json

import pytest
from example_results import GATES, PLAN, ROWS, gate, measured, results, run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fasteomt.bench.metrics import INFERENCE_GATES, METRICS, TRAINING_GATES
from fasteomt.bench.results import Measured, RoundResults, accuracy_of, problems
from fasteomt.errors import InputError


def test_build_derives_what_nobody_types() -> None:
    made = run()
    peer, parent, row, row_to_parent = made.rows
    assert (peer.baseline_median, peer.ratio, peer.accuracy, peer.unit) == (None, None, "unchecked", "ms")
    assert (row.baseline_median, row.ratio) == (9.0, 2.25)
    assert (row_to_parent.baseline_median, row_to_parent.ratio) == (6.0, 1.5)
    assert (row.accuracy, parent.accuracy) == ("passed", "unchecked")  # the parent's plan has no gates here
    assert row.speed == "measured"
    assert made.seal == made.digest()
    assert problems(results(made)) == []


def test_a_rate_is_better_when_it_is_higher() -> None:
    rows = (
        measured("upstream_predict", 40.0, metric="video_fps"),
        measured("r2", 100.0, metric="video_fps", plan=PLAN, baseline="upstream_predict"),
    )
    row = run(rows).rows[1]
    assert (row.ratio, row.unit, row.accuracy) == (2.5, "fps", "passed")


def test_a_training_row_needs_the_training_gates() -> None:
    rows = (measured("r2", 100.0, metric="train_img_s", plan=PLAN),)
    assert run(rows).rows[0].accuracy == "unchecked"
    made = run(rows, tuple(gate(name) for name in "BS"))
    assert made.rows[0].accuracy == "passed"
    assert problems(results(made)) == []


@pytest.mark.parametrize("field", ["model", "metric", "crops", "frames", "batch", "streams", "phase"])
def test_a_baseline_under_other_conditions_is_none(field: str) -> None:
    other = {"model": "vitb16", "metric": "frame_ms", "phase": "prep"}.get(field, 4)
    rows = (
        measured("graph_bf16", 9.0, **{field: other}),
        measured("r2", 4.0, plan=PLAN, baseline="graph_bf16"),
    )
    with pytest.raises(InputError, match=r"r2 .*'graph_bf16' is no other row"):
        run(rows)


def test_nothing_is_its_own_baseline() -> None:
    with pytest.raises(InputError, match="no other row"):
        run((measured("r2", 4.0, plan=PLAN, baseline="r2"),))


def test_a_peer_that_is_not_installed_is_said_so_and_gives_no_ratio() -> None:
    absent = measured("tensorrt", None, note="TensorRT is not installed")
    made = run((absent, measured("r2", 4.0, plan=PLAN, baseline="tensorrt")))
    assert [row.speed for row in made.rows] == ["none", "measured"]
    assert made.rows[1].ratio is None
    assert problems(results(made)) == []


def test_environment_gets_the_extremes_of_its_rows() -> None:
    rows = (
        measured("graph_bf16", 9.0, clock_mhz=(1700.0, 1980.0), watts=(300.0, 600.5)),
        measured("eager_bf16", 20.0, clock_mhz=(1650.0, 1900.0), watts=(350.0, 400.0)),
    )
    env = run(rows).env
    assert (env.clocks_mhz, env.watts) == ((1650.0, 1980.0), (300.0, 600.5))
    assert run().env.clocks_mhz == ()


@pytest.mark.parametrize("missing", INFERENCE_GATES)
def test_accuracy_needs_every_gate(missing: str) -> None:
    rest = [record for record in GATES if record.gate != missing]
    assert accuracy_of(PLAN, "vitl16", GATES) == "passed"
    assert accuracy_of(PLAN, "vitl16", rest) == "unchecked"
    assert accuracy_of(PLAN, "vitl16", [*GATES, gate(missing, passed=False)]) == "failed"


def test_accuracy_is_of_this_plan_and_model_alone() -> None:
    assert accuracy_of("c" * 12, "vitl16", GATES) == "unchecked"
    assert accuracy_of(PLAN, "vitb16", GATES) == "unchecked"
    assert accuracy_of(None, "vitl16", GATES) == "unchecked"
    others = [*GATES, gate("M", plan="c" * 12, passed=False), gate("M", model="vitb16", passed=False)]
    assert accuracy_of(PLAN, "vitl16", others) == "passed"
    assert accuracy_of(PLAN, "vitl16", GATES, ()) == "unchecked"  # no gates asked for is no proof


def test_every_metric_of_a_whole_model_needs_gates() -> None:
    parts = {name for name, metric in METRICS.items() if not metric.gates}
    assert parts == {"decode_fps", "kernel_us", "ready_s"}
    assert {METRICS[name].gates for name in ("train_img_s", "step_ms")} == {TRAINING_GATES}


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "fps"},
        {"median": float("nan")},
        {"median": 0.0},
        {"median": "4.0"},
        {"n": -1},
        {"crops": 0},
        {"plan": "not a hash"},
        {"by": "guessed"},
        {"watts": [1.0, 2.0]},
        {"ratio": 2.0},
    ],
)
def test_what_no_measurement_may_hold(change: dict) -> None:
    with pytest.raises(ValidationError):
        Measured(**dict(ROWS[2]) | change)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("X", {}),
        ("M", {"passed": 1}),
        ("M", {"checkpoint": ""}),
        ("M", {"values": {"iou": [float("inf")]}}),
        ("M", {"value": 1}),
    ],
)
def test_what_no_gate_may_hold(name: str, change: dict) -> None:
    with pytest.raises(ValidationError):
        gate(name, **change)


def test_records_do_not_change() -> None:
    with pytest.raises(ValidationError):
        run().rows[0].median = 1.0  # type: ignore[misc]


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=1e-9, max_value=1e9), st.floats(min_value=1e-9, max_value=1e9))
def test_every_figure_survives_the_file(ours: float, theirs: float) -> None:
    rows = (ROWS[0].model_copy(update={"median": theirs, "min": theirs, "max": theirs}),)
    rows += (measured("r2", ours, plan=PLAN, baseline="graph_bf16", min=ours, max=ours),)
    made = results(run(rows, (*GATES, gate("M", values={"x": [ours, None, 1, "y"]}))))
    again = RoundResults.model_validate_json(made.model_dump_json())
    assert again == made
    assert problems(again) == []


def test_a_seal_is_of_the_whole_run() -> None:
    made = run()
    assert made.model_copy(update={"command": "python other.py"}).digest() != made.seal
    assert made.model_copy(update={"gates": made.gates[:3]}).digest() != made.seal


def test_a_seal_can_be_made_again_from_the_file_alone() -> None:
    """And what is null doesn't count, as a field that a later version adds."""
    made = run((ROWS[0],), (gate("M", values={"a": [None, 1], "b": None, "c": {"d": None}}),))
    content = json.loads(made.model_dump_json())
    seal = content.pop("seal")
    for part in (content["env"], *content["rows"], *content["gates"]):
        for key in [key for key, value in part.items() if value is None]:
            del part[key]
    content["gates"][0]["values"] = {"a": [None, 1], "c": {}}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(canonical.encode()).hexdigest() == seal
