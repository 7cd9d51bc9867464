"""The script that checkers run: every implementation is launched or says why not, and a fault is an error."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fasteomt.engine.kernels import Kernels

PATH = Path(__file__).parents[2] / "scripts" / "launch_kernels.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch_kernels", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(
        module, "GEOMETRIES", {"21 and 25 tokens": {"num_queries": 4, "image_size": (64, 64)}}
    )
    monkeypatch.setattr(sys, "argv", ["launch_kernels", "--device", "cpu", "--stack", "bf16"])
    return module


def test_every_implementation_is_named(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main() == 0
    said = capsys.readouterr().out
    for op, module in script.OPS.items():
        for name in module.IMPLEMENTATIONS:
            assert (f"bf16, {op} {name}" in said) == (name != "reference")


def test_results_that_are_not_finite_are_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = torch.full((1, 4, 4, 4), torch.nan)
    monkeypatch.setattr(Kernels, "logits", lambda self, crops: (nothing, nothing))
    with pytest.raises(RuntimeError, match="not finite"):
        script.main()
