"""What a round writes: this GPU's run, complete and consistent, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fasteomt.bench.results import Measured, load, problems, save
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
    assert [path.name for path in tmp_path.iterdir()] == ["results.partial.json"]


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


def test_each_row_is_kept_at_once(tmp_path: Path) -> None:
    """A process may be ended so that it can't do anything any more."""
    kept = tmp_path / "results.partial.json"

    def looked_at() -> Iterator[Measured]:
        for number, row in enumerate(rows(2.0) + rows_of_four_crops(), 1):
            yield row
            # The first has a ratio to the second.
            assert len(load(kept).runs[0].rows) == number if number > 1 else not kept.exists()

    finish(tmp_path / "results.json", rows=looked_at(), **ROUND)
    assert not kept.exists()


def test_what_is_kept_of_another_gpu_stays(tmp_path: Path) -> None:
    out, kept = tmp_path / "results.json", tmp_path / "results.partial.json"
    finish(out, rows=rows(2.0), **ROUND)
    found = load(out)
    (run,) = found.runs
    other = run.model_copy(update={"env": run.env.model_copy(update={"gpu": "another one"})})
    save(kept, found.model_copy(update={"runs": (other,)}))
    finish(out, rows=rows(2.0), **ROUND)
    assert [each.env.gpu for each in load(kept).runs] == ["another one"]


@pytest.mark.parametrize("name", ["results.json", "results.partial.json"])
@pytest.mark.parametrize("what", ["a folder", "another file"])
def test_a_place_for_results_is_looked_at_before_measuring(tmp_path: Path, what: str, name: str) -> None:
    place = tmp_path / name
    place.mkdir() if what == "a folder" else place.write_text("{}")

    def never() -> Iterator[Measured]:
        raise AssertionError("measured")
        yield

    with pytest.raises(InputError, match=name):
        finish(tmp_path / "results.json", rows=never(), **ROUND)
