"""What is got ready, and names that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasteomt.checkpoint import random_checkpoint, write_export
from fasteomt.cli.main import main
from fasteomt.model.spec import ModelSpec


@pytest.fixture
def model(tmp_path: Path, small_spec: ModelSpec) -> str:
    path = tmp_path / "model.pt"
    write_export(path, small_spec, random_checkpoint(small_spec).weights)
    return str(path)


def test_each_number_of_crops_is_told(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "--model", model, "--device", "cpu", "--crops", "1", "--crops", "3"]) == 0
    said = capsys.readouterr().out
    assert "1 crop " in said and "3 crops" in said and "stack bf16 on cpu" in said


def test_unknown_stacks_and_absurd_crops_are_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "--model", model, "--stack", "fp7"]) == 2
    assert "unknown stack 'fp7'" in capsys.readouterr().err
    assert main(["warmup", "--model", model, "--crops", "0"]) == 2
