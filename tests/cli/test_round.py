"""What a round writes: this GPU's run, complete and consistent, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fasteomt.bench.results import GateRecord, Measured, RoundResults, load, problems
from fasteomt.cli import round as round_module
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


def rows_of_four_crops() -> list[Measured]:
    return [row.model_copy(update={"crops": 4}) for row in reversed(rows(2.0))]


def kept_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.partial"))


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
    assert list(tmp_path.iterdir()) == kept_in(tmp_path) and len(load(kept_in(tmp_path)[0]).runs[0].rows) == 2


def test_options_are_those_of_every_round() -> None:
    args = options("round0", "what it is", "vitl16").parse_args(["--quick", "--out", "r.json"])
    assert (args.model, args.quick, args.out, args.device) == ("vitl16", True, Path("r.json"), "auto")


def test_what_was_measured_before_an_interruption_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "results.json"
    finish(out, rows=rows(2.0), **ROUND)
    before = out.read_bytes()

    def broken() -> Iterator[Measured]:
        yield from rows(3.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(out, rows=broken(), **ROUND)
    assert out.read_bytes() == before
    (kept,) = kept_in(tmp_path)
    (run,) = load(kept).runs
    assert [row.median for row in run.rows] == [row.median for row in rows(3.0)]
    assert f"{kept}: 2 rows" in caplog.text
    # Later runs leave it alone.
    content = kept.read_bytes()
    finish(out, rows=rows(2.0), **ROUND)
    assert kept.read_bytes() == content


def test_each_row_is_kept_at_once(tmp_path: Path) -> None:
    """A process may be ended so that it can't do anything any more."""

    def looked_at() -> Iterator[Measured]:
        for number, row in enumerate(rows(2.0) + rows_of_four_crops(), 1):
            yield row
            # The first has a ratio to the second.
            found = [len(load(kept).runs[0].rows) for kept in kept_in(tmp_path)]
            assert found == ([number] if number > 1 else [])

    finish(tmp_path / "results.json", rows=looked_at(), **ROUND)
    assert not kept_in(tmp_path)


def test_a_run_goes_on_where_nothing_can_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, results: RoundResults) -> RoundResults:
        if path.suffix == ".partial":
            raise InputError(f"{path}: no space left")
        return real(path, results)

    real = round_module.save
    monkeypatch.setattr(round_module, "save", full)
    out = tmp_path / "results.json"
    finish(out, rows=rows(2.0) + rows_of_four_crops(), **ROUND)
    assert len(load(out).runs[0].rows) == 4
    assert caplog.text.count("can't be kept") == 1


def test_ratios_of_ratios_wait_for_all_they_are_to(tmp_path: Path) -> None:
    first, second = rows(2.0)
    third = second.model_copy(update={"stack": "compile_reduce_overhead", "baseline": "graph_bf16"})
    finish(tmp_path / "results.json", rows=[third, first, second], **ROUND)
    assert len(load(tmp_path / "results.json").runs[0].rows) == 3


def test_gates_may_come_one_by_one(tmp_path: Path) -> None:
    facts = {"checkpoint": "c", "clip": "c", "passed": True, "values": {"cosine": 1.0}}
    gate = GateRecord(gate="M", model="m", plan="0123456789ab", **facts)
    finish(tmp_path / "results.json", rows=rows(2.0), gates=iter([gate]), **ROUND)
    assert load(tmp_path / "results.json").runs[0].gates == (gate,)


@pytest.mark.parametrize("name", [".", "/"])
def test_what_is_no_file_is_named(name: str) -> None:
    with pytest.raises(InputError):
        finish(Path(name), rows=rows(2.0), **ROUND)


@pytest.mark.parametrize("what", ["a folder", "another file"])
def test_a_place_for_results_is_looked_at_before_measuring(tmp_path: Path, what: str) -> None:
    out = tmp_path / "results.json"
    out.mkdir() if what == "a folder" else out.write_text("{}")

    def never() -> Iterator[Measured]:
        raise AssertionError("measured")
        yield

    with pytest.raises(InputError):
        finish(out, rows=never(), **ROUND)
