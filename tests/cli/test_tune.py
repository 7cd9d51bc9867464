"""`fasteomt tune kernels`: what is wrong is one line; what is measured is told and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fasteomt.bench import tune as measuring
from fasteomt.bench.kernel_cases import Choice, Job
from fasteomt.bench.tune import Finding
from fasteomt.cli import tune
from fasteomt.cli.main import main
from fasteomt.engine.tuning import Entry, Table, read_table
from fasteomt.ops import linear

JOB = Job("linear", linear.Problem(2058, 1024, 1024, torch.bfloat16), None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "kernels"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "fasteomt: error: tuning kernels needs a CUDA device: see fasteomt doctor"
    ]
    assert main(["tune", "kernels", "--device", "cpu"]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stack", "fp7"], "unknown stack 'fp7'"),
        (["--model", "vitx16"], "vitx16"),
        (["--crops", "0"], "--crops"),
        (["--seconds", "0"], "--seconds"),
        (["--candidates", "0"], "--candidates"),
        (["--limit", "0"], "--limit"),
        (["--out", ""], "empty"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "kernels", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Finding]:
    """A GPU that isn't there, and what is found on it."""
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fasteomt.engine.resolve_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr("fasteomt.ops.target.Target.of", lambda device: None)
    monkeypatch.setattr(measuring, "workers_for", lambda device: 1)
    monkeypatch.setattr(measuring, "jobs_of", lambda *_: [JOB])
    monkeypatch.setattr(measuring, "hardware_name", lambda device: "NVIDIA H200")
    finding = Finding(JOB, [])
    finding.seconds = {Choice("fused"): 20e-6, Choice("cuda"): 10e-6, Choice("library"): 30e-6}
    found = [finding]
    monkeypatch.setattr(measuring, "tune", lambda *_, **options: found)
    return found


def test_winners_are_told_and_join_what_was_measured_before(
    measured: list[Finding], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "kernels", "--model", "vitl16", "--stack", "bf16"]) == 0
    said = capsys.readouterr().out
    path = tmp_path / "cache" / "kernels" / "nvidia-h200.json"
    assert said.splitlines()[-1] == str(path)
    assert "cuda" in said and "10.0" in said and "432" in said and "fused 20.0, library 30.0" in said
    first = read_table(path)
    assert first.best("linear", JOB.problem) == ("cuda", None)
    kept = Entry("linear", "m=1", "fused", None, 1.0)
    Table(first.gpu, first.torch, first.triton, "", (*first.entries, kept)).write(path, overwrite=True)
    measured[0].seconds = {Choice("fused"): 9e-6}
    assert main(["tune", "kernels"]) == 0
    second = read_table(path)
    assert second.best("linear", JOB.problem) == ("fused", None)
    assert kept in second.entries and len(second.entries) == 2
    # Times of another torch are not mixed with these.
    Table(first.gpu, "1.0", first.triton, "", (kept,)).write(path, overwrite=True)
    assert main(["tune", "kernels"]) == 0
    assert kept not in read_table(path).entries


def test_a_file_of_ones_own(
    measured: list[Finding], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.json"
    assert main(["tune", "kernels", "--out", str(out)]) == 0
    assert read_table(out).gpu == "NVIDIA H200"
    assert main(["tune", "kernels", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["tune", "kernels", "--out", str(out), "--overwrite"]) == 0
    assert not (tmp_path / "cache").exists()


def test_nothing_measured_writes_nothing(
    measured: list[Finding], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured[0].seconds = {}
    assert main(["tune", "kernels"]) == 2
    said = capsys.readouterr()
    assert "not measured" in said.out and "nothing could be measured" in said.err
    assert not (tmp_path / "cache").exists()


def test_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, *(float(second) for second in range(1, 14))])
    monkeypatch.setattr(tune.time, "monotonic", lambda: next(times))
    progress = tune._Progress(every_s=5)
    for done in range(13):
        progress("kernels", done, 12)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].split(" ")[1] for line in lines] == ["0", "5", "10", "12"]
