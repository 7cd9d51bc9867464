"""Every way in which results can be wrong is found, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from example_results import GATES, PARENT_PLAN, PLAN, ROWS, gate, measured, results, run

from fasteomt.bench.results import Measured, RoundResults, Run, problems

PEER, PARENT, OURS, _ = range(4)


def edited(
    row: int | None = None, *, gates: list[dict] | None = None, reseal: bool = True, **changes: Any
) -> list[str]:
    """Problems of the valid example after changes to a row, or to its gates. With a fresh seal, so that what
    is found is found by itself."""
    content = json.loads(results().model_dump_json())
    made = content["runs"][0]
    if row is not None:
        made["rows"][row] |= changes
    if gates is not None:
        made["gates"] = gates
    found = RoundResults.model_validate_json(json.dumps(content))
    if reseal:
        found = results(found.runs[0].model_copy(update={"seal": found.runs[0].digest()}))
    return problems(found)


def test_the_example_is_right() -> None:
    assert problems(results()) == []
    assert edited() == []


def test_an_edit_by_hand_breaks_the_seal() -> None:
    """Even where the edited figure fits all others."""
    found = edited(OURS, peak_mib=1.0, reseal=False) + edited(gates=[], reseal=False)
    assert all(line.startswith("NVIDIA H200: ") for line in found)
    assert sum("seal doesn't match" in line for line in found) == 2


@pytest.mark.parametrize(
    ("row", "changes", "expected"),
    [
        (OURS, {"median": 3.7}, "ratio is 2.25, but the two medians give 2.43"),
        (PEER, {"median": 9.5}, "baseline_median is 9.0, but the median of 'graph_bf16' is 9.5"),
        (OURS, {"baseline_median": 12.0, "ratio": 3.0}, "baseline_median is 12.0, but the median"),
        (OURS, {"ratio": 2.2501}, "ratio is 2.2501, but the two medians give 2.25"),
        (OURS, {"ratio": None}, "ratio is None, but"),
        (OURS, {"baseline": None}, "baseline_median is 9.0, but the median of 'None' is None"),
        (OURS, {"baseline": "eager_bf16"}, "baseline 'eager_bf16' is no other row of this run"),
        (OURS, {"baseline": "r2"}, "baseline 'r2' is no other row of this run"),
        (PEER, {"phase": "prep"}, "baseline 'graph_bf16' is no other row of this run"),
        (PARENT, {"accuracy": "passed"}, "accuracy is 'passed', but the gates of its plan say 'unchecked'"),
        (PEER, {"accuracy": "passed"}, "accuracy is 'passed', but the gates of its plan say 'unchecked'"),
        (OURS, {"accuracy": "unchecked"}, "accuracy is 'unchecked', but the gates of its plan say 'passed'"),
        (OURS, {"plan": "c" * 12}, "accuracy is 'passed', but the gates of its plan say 'unchecked'"),
        (OURS, {"plan": "c" * 12}, "vitl16 r2: two plans under one name"),
        (OURS, {"plan": None}, "no plan, though it is no peer"),
        (PEER, {"plan": PLAN}, "a peer has no plan"),
        (OURS, {"floor": 4.1}, "median 4 ms is faster than the physical floor 4.1"),
        (OURS, {"min": 4.2, "max": 4.3}, "median 4 is outside min 4.2 and max 4.3"),
        (OURS, {"max": 3.9}, "median 4 is outside"),
        (OURS, {"n": 0}, "measured, but without median, min, max or n"),
        (OURS, {"min": None}, "measured, but without median, min, max or n"),
        (OURS, {"unit": "us"}, "unit 'us', but model_ms is in ms"),
        (OURS, {"by": "emulated"}, "emulated arithmetic has no speed"),
        (OURS, {"speed": "none", "note": "x"}, "speed is 'none', yet it has median, min, max"),
        (OURS, {"watts": [500.0, 400.0]}, "watts: the lowest is above the highest"),
        (OURS, {"peak_mib": 800.0}, "measured twice with different figures"),
        (OURS, {"baseline": "r1", "baseline_median": 6.0, "ratio": 1.5}, "the same row twice"),
    ],
)
def test_a_wrong_row(row: int, changes: dict, expected: str) -> None:
    found = edited(row, **changes)
    assert any(expected in line for line in found), found


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], "unchecked"),
        ([*GATES[:3]], "unchecked"),
        ([gate(name, plan=PARENT_PLAN) for name in "MHGO"], "unchecked"),
        ([gate(name, model="vitb16") for name in "MHGO"], "unchecked"),
        ([*GATES, gate("E", passed=False)], "failed"),
    ],
)
def test_passed_without_the_gates_of_its_plan(records: list, expected: str) -> None:
    found = edited(gates=[record.model_dump(mode="json") for record in records])
    assert sum(f"but the gates of its plan say '{expected}'" in line for line in found) >= 2


def test_a_verdict_without_figures() -> None:
    found = problems(results(run(gates=(*GATES[:3], gate("O", values={})))))
    assert found == [f"NVIDIA H200: gate O of plan {PLAN} passed without figures"]


def test_a_rate_above_its_limit() -> None:
    def of(floor: float) -> list[str]:
        row = measured("r2", 100.0, metric="video_fps", plan=PLAN, floor=floor)
        return problems(results(run((row,))))

    assert of(150.0) == []
    assert "median 100 fps is faster than the physical floor 90" in of(90.0)[0]


def rowed(*rows: Measured) -> list[str]:
    return problems(results(run(rows)))


def test_rows_without_a_time() -> None:
    assert rowed(measured("mxfp8", None, plan=PLAN, by="emulated", note="no such arithmetic on sm_90")) == []
    assert "no note that says why" in rowed(measured("mxfp8", None, plan=PLAN, by="emulated"))[0]
    assert "yet it has n" in rowed(measured("tensorrt", None, note="not installed", n=3))[0]


def test_a_part_of_the_work_needs_no_plan() -> None:
    assert rowed(measured("some kernel", 20.0, metric="kernel_us", phase="block.fc1")) == []


def test_equal_rows_under_other_conditions_are_no_duplicates() -> None:
    assert rowed(ROWS[0], measured("graph_bf16", 18.0, crops=4)) == []
    assert "the same row twice" in rowed(ROWS[0], ROWS[0])[0]
    assert "different figures" in rowed(ROWS[0], measured("graph_bf16", 8.0))[0]


def test_rounds() -> None:
    twice: tuple[Run, ...] = (run(), run(date="2026-01-03T00:00:00Z"))
    assert problems(results(*twice)) == ["NVIDIA H200: two runs of this GPU: keep the newest"]
    assert "a change without a parent" in problems(results(parent=None))[0]
    assert problems(results(parent=None, kind="study")) == []
