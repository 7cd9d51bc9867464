"""The store of verdicts: what is found again, and what no longer counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gate_samples import subject

from fasteomt.errors import InputError
from fasteomt.gates import store
from fasteomt.gates.limits import load_limits
from fasteomt.gates.verdict import Report, Verdict
from fasteomt.plan import Group, Plan

PLAN = Plan((Group(("norm",), "torch", "bf16"),))
SUBJECT = subject(plan=PLAN.hash)
KEY = (SUBJECT.checkpoint, PLAN, SUBJECT.clip, SUBJECT.gpu)
GOOD = {"M": {"cosine": 1.0, "iou": 1.0}, "G": {"differing_values": 0, "eager_differing_values": 0}}


@pytest.fixture(autouse=True)
def same_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be edited while tests run."""
    monkeypatch.setattr(store, "source_digest", lambda: SUBJECT.source)


def verdict(gate: str = "M", **values: float) -> Verdict:
    limits = load_limits().tier(PLAN).of(gate, truth=False)
    return Verdict(gate, SUBJECT, GOOD[gate] | values, limits)


def report(*verdicts: Verdict) -> Report:
    return Report(SUBJECT, PLAN, verdicts, {}, 8, 96, 64)


def test_saved_verdicts_are_found(tmp_path: Path) -> None:
    path = store.save_report(report(verdict(), verdict("G", differing_values=3)), tmp_path)
    found = store.read_verdicts(*KEY, tmp_path)
    assert {gate: one.passed for gate, one in found.items()} == {"M": True, "G": False}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_later_verdicts_replace_and_others_stay(tmp_path: Path) -> None:
    store.save_report(report(verdict(), verdict("G")), tmp_path)
    skipped = Verdict("G", SUBJECT, not_run="no graphs")
    store.save_report(report(verdict(iou=0.5), skipped), tmp_path)
    found = store.read_verdicts(*KEY, tmp_path)
    assert {gate: one.passed for gate, one in found.items()} == {"M": False, "G": True}


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "e" * 64), (2, "e" * 64), (3, "NVIDIA L4"), (1, Plan((*PLAN.groups, *PLAN.groups)))],
)
def test_another_key_finds_nothing(tmp_path: Path, place: int, value: Any) -> None:
    path = store.save_report(report(verdict()), tmp_path)
    key: list[Any] = list(KEY)
    key[place] = value
    assert store.read_verdicts(*key, tmp_path) == {}
    # Nor does a file that is put where the other's should be.
    other = store.verdict_path(*key, tmp_path)
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(path.read_bytes())
    assert store.read_verdicts(*key, tmp_path) == {}


def _passed(raw: dict[str, Any]) -> None:
    raw["passed"] = True


def _lax_limits(raw: dict[str, Any]) -> None:
    raw["limits"]["min_iou"] = 0.1
    raw["passed"] = True


def _old_source(raw: dict[str, Any]) -> None:
    raw["source"] = "0" * 64


def _old_torch(raw: dict[str, Any]) -> None:
    raw["torch"] = "1.0"


def _no_values(raw: dict[str, Any]) -> None:
    del raw["values"]


@pytest.mark.parametrize("edit", [_passed, _lax_limits, _old_source, _old_torch, _no_values])
def test_edited_and_old_files_count_for_nothing(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    path = store.save_report(report(verdict(iou=0.5)), tmp_path)
    content = json.loads(path.read_text())
    edit(content["verdicts"][0])
    path.write_text(json.dumps(content))
    assert store.read_verdicts(*KEY, tmp_path) == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"verdicts": 3}', '{"verdicts": [3]}', "\0", '{"verdicts": ' + "[" * 100_000]
)
def test_a_broken_file_counts_for_nothing_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = store.save_report(report(verdict()), tmp_path)
    path.write_text(text)
    assert store.read_verdicts(*KEY, tmp_path) == {}
    store.save_report(report(verdict()), tmp_path)
    assert store.read_verdicts(*KEY, tmp_path)["M"].passed


@pytest.mark.parametrize("clip", [["c"], {}, None])
def test_a_clip_that_is_no_name_counts_for_nothing(tmp_path: Path, clip: object) -> None:
    path = store.save_report(report(verdict()), tmp_path)
    content = json.loads(path.read_text())
    for one in content["verdicts"]:
        one["clip"] = clip
    path.write_text(json.dumps(content))
    assert store.read_verdicts(*KEY, tmp_path) == {}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = store.save_report(report(verdict()), tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert store.read_verdicts(*KEY, tmp_path) == {}


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        store.save_report(report(verdict()), tmp_path / "file")
