"""`fasteomt bench`: a table and the same rows as JSON, or one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fasteomt.checkpoint import random_checkpoint, write_export
from fasteomt.cli.main import main
from fasteomt.model.spec import ModelSpec


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    checkpoint = random_checkpoint(ModelSpec.from_name("vitt16", image_size=(64, 64)))
    return str(write_export(tmp_path_factory.mktemp("m") / "m.pt", checkpoint.spec, checkpoint.weights))


def test_rows_on_screen_and_in_the_file(model: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "rows.json"
    options = ["bench", "--model", model, "--device", "cpu", "--stack", "fp32", "--stack", "bf16"]
    assert main([*options, "--seconds", "0.05", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["stack"] for row in rows] == ["fp32", "bf16"]
    assert rows[1]["ratio"] == pytest.approx(rows[0]["median"] / rows[1]["median"])
    assert "model_ms" in capsys.readouterr().out
    assert main([*options, "--json", str(out)]) == 2  # there already


@pytest.mark.parametrize(
    "options",
    [
        "ladder nowhere",
        "--stack nothing",
        "--stack fp32 --stack fp32",
        "--video nowhere.mp4",
        "--model x",
        "--json /",
    ],
)
def test_refused_in_one_line(options: str, capsys) -> None:
    assert main(["bench", *options.split(), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
