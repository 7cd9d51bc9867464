"""Rounds take verdicts from the files that `fasteomt gate --json` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fasteomt.cli.change import gate_records
from fasteomt.errors import InputError
from fasteomt.gates.verdict import Subject, Verdict


def verdicts(**changes: object) -> list[dict[str, object]]:
    facts = dict.fromkeys(Subject.__dataclass_fields__, "x") | {"model": "vitl16", "plan": "0123456789ab"}
    subject = Subject(**facts)  # type: ignore[arg-type]
    found = [
        Verdict("M", subject, {"cosine": 0.99999}, {"min_cosine": 0.9999}, None),
        Verdict("O", subject, {"cosine": 0.99}, {"min_cosine": 0.9999}, None),
        Verdict("G", subject, {}, {}, "no CUDA graphs"),
    ]
    return [verdict.to_dict() | changes for verdict in found]


def written(folder: Path, content: object) -> Path:
    path = folder / "gate.json"
    path.write_text(json.dumps(content))
    return path


def test_gates_that_were_run_become_records(tmp_path: Path) -> None:
    found = gate_records(written(tmp_path, {"verdicts": verdicts()}))
    assert [(one.gate, one.model, one.plan, one.passed) for one in found] == [
        ("M", "vitl16", "0123456789ab", True),
        ("O", "vitl16", "0123456789ab", False),
    ]


@pytest.mark.parametrize(
    "content",
    [
        *({}, [], 3, {"verdicts": 3}, {"verdicts": [{}]}, {"verdicts": verdicts(passed=True)}),
        *({"verdicts": verdicts(**{name: 5})} for name in ("model", "plan", "values", "limits", "gate")),
        *({"verdicts": verdicts(model=word)} for word in (None, "", "\ud800", ["x"])),
        *({"verdicts": verdicts(values=bad)} for bad in ([[1, 1.0]], {"cosine": 10**400}, {"cosine": "x"})),
        {"verdicts": verdicts(limits=[[1, 1.0]])},
    ],
)
def test_what_is_no_file_of_verdicts_is_named(content: object, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=r"gate\.json"):
        gate_records(path)
    with pytest.raises(InputError, match=r"none\.json"):
        gate_records(tmp_path / "none.json")
