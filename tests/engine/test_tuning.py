"""Tables of what is fastest: how problems are named, where tables lie, and which one counts."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from fasteomt.engine import tuning
from fasteomt.engine.tuning import Entry, Table, load_table, problem_key, read_table, table_file, tuned_config
from fasteomt.errors import InputError
from fasteomt.ops import attention, depthwise_norm, linear
from fasteomt.ops.grid import Grid
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import CPU, Target

GPU = "NVIDIA H200"
FC1 = linear.Problem(2058, 4096, 1024, torch.bfloat16, "gelu")
FC2 = linear.Problem(2058, 1024, 4096, torch.bfloat16, "residual")
ATTENTION = attention.Problem(Rows(2, 1024, 5), 16, 64, torch.float16)
SM_90 = Target.named("sm_90")


def entry(problem: object, name: str, us: float, config: dict[str, object] | None = None) -> Entry:
    op = "attention" if isinstance(problem, attention.Problem) else "linear"
    return Entry(op, problem_key(problem), name, config, us)


def table(*entries: Entry) -> Table:
    return Table(GPU, "2.11.0", "3.6.0", "2026-11-30T12:00:00Z", entries)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's and the shipped one, neither of which is there yet."""
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "cache" / "kernels", tmp_path / "shipped"


def test_names_of_problems_stay_what_they_are_since_files_have_them() -> None:
    assert problem_key(FC1) == (
        "m=2058,n=4096,k=1024,dtype=bfloat16,epilogue=gelu,head_dim=0,out_dtype=bfloat16"
    )
    assert problem_key(ATTENTION) == (
        "rows=(crops=2,patches=1024,extras=5),heads=16,head_dim=64,dtype=float16,rope=False,"
        "half_accumulate=False,out_dtype=float16"
    )
    grid = depthwise_norm.Problem(Grid(2, 32, 1), 1024, torch.float16)
    assert problem_key(grid).startswith("grid=(crops=2,")


@pytest.mark.parametrize("problem", [FC1, ATTENTION])
def test_every_field_of_a_problem_is_in_its_name(problem: linear.Problem | attention.Problem) -> None:
    others = {torch.dtype: torch.float32, str: "rope", Rows: Rows(2, 1024, 105)}
    for field in fields(problem):
        value = getattr(problem, field.name)
        other = replace(problem, **{field.name: others.get(type(value)) or (not value or value + 1)})
        assert problem_key(other) != problem_key(problem), field.name


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    config = {"block_m": 128, "registers": None, "small": True}
    made = table(
        entry(FC1, "cuda", 31.5, config), entry(FC1, "library", 40.0), entry(ATTENTION, "cute", 55.1)
    )
    made.write(tmp_path / "table.json")
    assert read_table(tmp_path / "table.json") == made
    with pytest.raises(InputError, match="exists"):
        made.write(tmp_path / "table.json")


def test_the_fastest_and_each_ones_configuration() -> None:
    made = table(
        entry(FC1, "fused", 35.0, {"a": 1}), entry(FC1, "cuda", 31.5, {"b": 2}), entry(FC2, "cute", 1)
    )
    assert made.best("linear", FC1) == ("cuda", {"b": 2})
    assert made.config_for("linear", "fused", FC1) == {"a": 1}
    assert made.best("linear", FC2) == ("cute", None)
    assert made.best("linear", replace(FC1, k=2048)) is None
    assert made.best("attention", ATTENTION) is None
    assert made.config_for("linear", "library", FC1) is None


def test_what_was_not_measured_takes_after_its_nearest_relative() -> None:
    two, four = FC1, replace(FC1, m=4116)
    made = table(entry(two, "cuda", 30.0, {"b": 2}), entry(four, "cuda", 60.0, {"b": 4}))
    for m, config in [(1029, 2), (2059, 2), (3087, 4), (8232, 4)]:
        for dtype in (torch.bfloat16, torch.float16):
            assert made.best("linear", replace(FC1, m=m, dtype=dtype)) == ("cuda", {"b": config})
    for other in (replace(FC1, dtype=torch.float32), replace(FC1, n=2058), replace(FC1, epilogue="")):
        assert made.best("linear", other) is None
    half = table(*made.entries, entry(replace(FC1, dtype=torch.float16), "fused", 50.0))
    assert half.best("linear", replace(two, dtype=torch.float16)) == ("fused", None)
    assert half.best("linear", replace(two, m=2059, dtype=torch.float16)) == ("fused", None)
    heads = table(entry(ATTENTION, "fused", 9.0, {"c": 1}))
    assert heads.best("attention", replace(ATTENTION, rows=Rows(3, 1024, 5))) == ("fused", {"c": 1})
    assert heads.best("attention", replace(ATTENTION, rows=Rows(2, 1024, 105))) is None


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, "-5", "1e9"])
def test_sizes_that_no_problem_has_are_nobodys_relatives(size: str) -> None:
    made = table(Entry("linear", problem_key(FC1).replace("m=2058", f"m={size}"), "cuda", None, 1.0))
    assert made.best("linear", FC1) is None
    assert made.best("linear", replace(FC1, m=1029)) is None


def test_the_users_measurements_come_before_shipped_ones(folders: tuple[Path, Path]) -> None:
    own, shipped = folders
    assert load_table(GPU) == Table()
    table(entry(FC1, "cuda", 1.0), entry(FC2, "cuda", 2.0)).write(table_file(GPU, shipped))
    assert load_table(GPU).best("linear", FC1) == ("cuda", None)
    table(entry(FC1, "fused", 9.0)).write(table_file(GPU))
    assert table_file(GPU) == own / "nvidia-h200.json"
    found = load_table(GPU)
    assert found.best("linear", FC1) == ("fused", None)  # though another was faster elsewhere
    assert found.best("linear", FC2) == ("cuda", None)
    assert load_table("NVIDIA B200") == Table()


GOOD = {"op": "linear", "problem": "m=1", "implementation": "fused", "config": None, "us": 1.0}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "\0", '{"entries": 3}', '{"entries": [3]}', '{"entries": [], "more": 1}']
    + [
        json.dumps({"entries": [GOOD | wrong]})
        for wrong in ({"us": -1}, {"us": "1"}, {"config": 3}, {"op": None}, {"x": 1})
    ],
)
def test_broken_files_are_ignored_and_told_once(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = table_file(GPU)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert load_table(GPU) == load_table(GPU) == Table()
    (record,) = caplog.records
    assert "nvidia-h200.json: ignored: not a table of kernels" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_file_that_is_no_text(folders: tuple[Path, Path]) -> None:
    path = table_file(GPU)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe")
    assert load_table(GPU) == Table()


def test_only_what_is_still_a_candidate_is_run() -> None:
    pytest.importorskip("triton")
    from fasteomt.ops.linear import fused

    wanted = fused.candidates(SM_90, FC1)[2]
    config = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    made = table(entry(FC1, "fused", 1.0, config), entry(FC2, "fused", 1.0, config | {"block_m": 7}))
    assert tuned_config(made, SM_90, "linear", "fused", FC1) == wanted
    assert tuned_config(made, SM_90, "linear", "fused", FC2) is None
    assert tuned_config(made, SM_90, "linear", "cuda", FC1) is None
    # 'library' has no candidates, whatever a table says.
    made = table(entry(FC1, "library", 1.0, config))
    assert tuned_config(made, SM_90, "linear", "library", FC1) is None


def test_a_cpu_has_no_table() -> None:
    assert tuning.table_of(torch.device("cpu")) == tuning.table_for(CPU) == Table()


def test_the_table_of_the_gpu_that_a_plan_is_for(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two GPUs the one that is the target; none for what isn't here."""
    here = [Target.named("sm_120"), SM_90]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(here))
    monkeypatch.setattr(Target, "of", lambda device: here[device.index])
    monkeypatch.setattr(tuning, "hardware_name", lambda device: ("NVIDIA RTX", GPU)[device.index])
    made = table(entry(FC1, "cuda", 1.0))
    made.write(table_file(GPU))
    assert tuning.table_for(SM_90).entries == made.entries
    assert tuning.table_for(here[0]) == tuning.table_for(Target.named("sm_100")) == Table()
