"""What a round writes: this GPU's run, complete and consistent, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fasteomt.bench.results import Measured, load, problems
from fasteomt.cli.round import finish, options
from fasteomt.errors import FastEomtError, InputError

CPU = torch.device("cpu")
FACTS = {"model": "m", "plan": None, "metric": "model_ms", "crops": 2, "frames": 1, "batch": 1, "streams": 1}

ROUND = {"round_name": "infer-opt/round0_x", "title": "t", "kind": "study", "parent": None, "device": CPU}


def rows(median: float) -> list[Measured]:
    times = {"median": median, "min": 1.0, "max": 3.0, "n": 3, "by": "native"}
    slow = {"median": 3.0, "min": 3.0, "max": 3.0, "n": 3, "by": "native"}
    return [
        Measured(**FACTS, stack="graph_bf16", baseline="eager_bf16", **times),
        Measured(**FACTS, stack="eager_bf16", **slow),
    ]


def test_results_are_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    finish(out, rows=rows(2.0), **ROUND)
    (run,) = load(out).runs
    assert problems(load(out)) == []
    assert run.rows[0].ratio == 1.5
    assert "1.50 x eager_bf16" in capsys.readouterr().out
    finish(out, rows=rows(1.5), **ROUND)
    assert [one.rows[0].ratio for one in load(out).runs] == [2.0]


def test_contradictions_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(FastEomtError, match="not written"):
        finish(tmp_path / "results.json", rows=rows(9.0), **ROUND)
    assert list(tmp_path.iterdir()) == []


def test_options_are_those_of_every_round() -> None:
    args = options("round0", "what it is", "vitl16").parse_args(["--quick", "--out", "r.json"])
    assert (args.model, args.quick, args.out, args.device) == ("vitl16", True, Path("r.json"), "auto")


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    finish(out, rows=rows(2.0), **ROUND)
    before = out.read_bytes()

    def broken() -> Iterator[Measured]:
        yield from rows(3.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(out, rows=broken(), **ROUND)
    assert out.read_bytes() == before
    (run,) = load(tmp_path / "results.partial.json").runs
    assert [row.median for row in run.rows] == [row.median for row in rows(3.0)]


def test_an_interruption_stays_one_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "results.partial.json").write_text("not results")

    def broken() -> Iterator[Measured]:
        yield from rows(3.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(tmp_path / "results.json", rows=broken(), **ROUND)
    assert (tmp_path / "results.partial.json").read_text() == "not results"


@pytest.mark.parametrize("what", ["a folder", "another file"])
def test_a_place_for_results_is_looked_at_before_measuring(tmp_path: Path, what: str) -> None:
    out = tmp_path / "results.json"
    out.mkdir() if what == "a folder" else out.write_text("{}")

    def never() -> Iterator[Measured]:
        raise AssertionError("measured")
        yield

    with pytest.raises(InputError):
        finish(out, rows=never(), **ROUND)
