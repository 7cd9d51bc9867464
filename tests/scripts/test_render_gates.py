"""GATES.md follows from the table of limits."""

from __future__ import annotations

from pathlib import Path

import pytest

import render_gates
from fasteomt.gates.limits import load_limits


def test_the_document_is_up_to_date() -> None:
    assert render_gates.main(["--check"]) == 0


def test_an_old_document_is_found_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert render_gates.main(["--check"], tmp_path) == 1
    assert "GATES.md is old" in capsys.readouterr().err
    assert render_gates.main([], tmp_path) == 0
    assert render_gates.main(["--check"], tmp_path) == 0
    path = tmp_path / "GATES.md"
    path.write_text(path.read_text("utf-8").replace("0.9999", "0.9"), "utf-8")
    assert render_gates.main(["--check"], tmp_path) == 1
    assert render_gates.main(["--help"], tmp_path) == 2


def test_every_limit_is_in_it() -> None:
    lines = render_gates.document(load_limits()).splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("|")][2:]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["fp32 bf16 fp16", "16 bits", "≥ 0.9999", "≥ 0.98", "≥ 0.99", "≤ 3 %", "≤ 0.3 points", "none"],
        ["fp8_e4m3 mxfp8", "8 bits", "≥ 0.999", "≥ 0.95", "≥ 0.99", "≤ 6 %", "≤ 0.5 points", "none"],
        ["nvfp4 mxfp4", "4 bits", "≥ 0.99", "≥ 0.9", "≥ 0.95", "≤ 10 %", "≤ 1 points", "none"],
    ]
