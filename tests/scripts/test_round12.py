"""speed12.py and bench12.py on the CPU: any stacks side by side, and what can't be is said in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fasteomt.checkpoint import random_checkpoint, write_export
from fasteomt.model.spec import ModelSpec

FOLDER = Path(__file__).parents[2] / "infer-opt" / "round12_lowp_stack"
PLUGIN = """
from dataclasses import replace
from fasteomt.stacks import STACKS as SHIPPED
STACKS = {"mine": replace(SHIPPED["fp16"], name="mine")}
"""


@pytest.fixture
def model(tmp_path: Path, small_spec: ModelSpec) -> Path:
    path = tmp_path / "model.pt"
    write_export(path, small_spec, random_checkpoint(small_spec).weights)
    return path


def run(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script, "--device", "cpu", "--quick", *map(str, options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, env=environment, timeout=300)


def test_stacks_side_by_side_with_a_plugged_in_one(tmp_path: Path, model: Path) -> None:
    (tmp_path / "plug.py").write_text(PLUGIN)
    out = tmp_path / "speed.json"
    options = ("--model", model, "--variants", "r5_v1,r12+head16,mine", "--plugin", f"{tmp_path}:plug")
    done = run("speed12.py", *options, "--tag", "demo", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["tag"] == "demo"
    assert [row["stack"] for row in found["rows"]] == ["r5_v1", "fp16+head16", "mine"]
    assert [row["baseline"] for row in found["rows"]] == [None, "r5_v1", "r5_v1"]
    again = run("speed12.py", *options, "--out", out)
    assert again.returncode == 2 and again.stderr.count("\n") == 1 and "speed.json" in again.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--plugin", "../no_such_round:plug"), "there is no"),
        (("--plugin", "plug"), "name it FOLDER:MODULE"),
        (("--crops", "0"), "--crops 0: must be at least 1"),
        (("--variants", "r5_v1,r99"), "unknown stack 'r99'"),
        (("--variants", "bf16,r11"), "name each stack once"),
    ],
)
def test_what_cannot_be_is_one_line(model: Path, options: tuple[str, ...], said: str) -> None:
    done = run("speed12.py", "--model", model, *options)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_crops_and_frames(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "bench.json"
    done = run("bench12.py", "--model", model, "--variants", "bf16", "--out", out)
    assert done.returncode == 0, done.stderr
    measured = [row for row in json.loads(out.read_text())["rows"] if row["median"] is not None]
    assert [(row["crops"], row["frames"]) for row in measured] == [(1, 1), (2, 1), (2, 2), (2, 4)]


@pytest.mark.parametrize("text", ["1 / 0", "import no_such_module", "STACKS = 3", "STACKS = {'a': 4}", "a b"])
def test_plug_ins_that_are_none(tmp_path: Path, model: Path, text: str) -> None:
    (tmp_path / "plug.py").write_text(text)
    done = run("speed12.py", "--model", model, "--plugin", f"{tmp_path}:plug")
    assert done.returncode == 2
    assert "plug.py" in done.stderr and done.stderr.count("\n") == 1, done.stderr
