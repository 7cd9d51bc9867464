"""Verdicts and reports: passed follows from figures, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gate_samples import subject

from fasteomt.bench.schema import GateRecord
from fasteomt.errors import InputError
from fasteomt.gates.verdict import Report, Verdict
from fasteomt.plan import Plan

LIMITS = {"min_iou": 0.98}


def verdict(iou: float = 0.99, **changes: Any) -> Verdict:
    return Verdict(
        **({"gate": "M", "subject": subject(), "values": {"iou": iou}, "limits": LIMITS} | changes)
    )


def test_passed_follows_from_the_values() -> None:
    assert (verdict(0.98).passed, verdict(0.98).broken) == (True, [])
    assert (verdict(0.97).passed, verdict(0.97).broken) == (False, ["iou 0.97 < 0.98"])


def test_not_run_is_not_passed() -> None:
    found = verdict(values={}, limits={}, not_run="cpu has no CUDA graphs")
    assert found.passed is None
    with pytest.raises(InputError, match="gate M was not run: cpu has no CUDA graphs"):
        found.record()


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": "X"},
        {"values": {"iou": math.nan}},
        {"values": {"iou": math.inf}},
        {"values": {"iou": True}},
        {"values": {"iou": "1"}},
        {"values": {}},
        {"limits": {}},
        {"limits": {"min_iou": math.nan}},
    ],
)
def test_a_verdict_on_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        verdict(**changes)


def test_record_is_what_results_hold() -> None:
    record = verdict().record()
    assert GateRecord.model_validate(record).passed is True
    assert record == {
        "gate": "M",
        "model": "tiny",
        "plan": "0123456789ab",
        "checkpoint": "c" * 64,
        "clip": "d" * 64,
        "passed": True,
        "values": {"iou": 0.99},
    }


@pytest.mark.parametrize("one", [verdict(), verdict(0.9), verdict(values={}, limits={}, not_run="no graphs")])
def test_json_both_ways(one: Verdict) -> None:
    assert Verdict.from_dict(one.to_dict()) == one


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"passed": True}, "says passed True, its values say False"),
        ({"values": {"iou": 0.99}}, "says passed False, its values say True"),
        ({"limits": {"min_iou": 0.5}}, "says passed False, its values say True"),
        ({"not_run": "tired"}, "says passed False, its values say None"),
        ({"values": None}, "not a gate's verdict"),
        ({"values": {"iou": "0.9"}}, "must be a finite number"),
        ({"passed": 0}, "says passed 0"),
    ],
)
def test_edited_json_is_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Verdict.from_dict(verdict(0.9).to_dict() | change)
    with pytest.raises(InputError, match="not a gate's verdict"):
        Verdict.from_dict({"gate": "M"})


def test_report() -> None:
    skipped = verdict(gate="G", values={}, limits={}, not_run="no graphs")
    report = Report(subject(), Plan(()), (verdict(), verdict(0.9, gate="O"), skipped), {}, 8, 96, 64)
    assert [one.gate for one in report.failed] == ["O"]
    assert [one["gate"] for one in report.records()] == ["M", "O"]
    content = report.to_dict()
    assert [one["passed"] for one in content["verdicts"]] == [True, False, None]
    assert (content["checkpoint"], content["plan"], content["frames"]) == ("c" * 64, "0123456789ab", 8)
