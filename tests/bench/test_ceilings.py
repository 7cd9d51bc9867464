"""Ceilings are measured for what runs, kept as JSON, and never taken for another machine's."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest
import torch

from fasteomt.bench import ceilings as module
from fasteomt.bench.ceilings import Ceilings, measure_ceilings, read_ceilings, write_ceilings
from fasteomt.capabilities import hardware_name
from fasteomt.errors import InputError

CPU = torch.device("cpu")
SOME = Ceilings("NVIDIA H200", "2026-11-30T00:00:00+00:00", "2.11.0", 4.2e12, {"bf16": 7.38e14})


def test_the_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._SIZES, "cpu", (64, 2**16))
    found = measure_ceilings(CPU, seconds=0.01)
    assert found.gpu == hardware_name(CPU)
    assert found.torch == torch.__version__
    assert datetime.fromisoformat(found.date).tzinfo is not None
    assert "fp32" in found.flops_per_s
    assert not {"tf32", "fp8_e4m3"} & found.flops_per_s.keys()  # a GPU's
    # no CPU that runs this is outside these
    assert 1e8 < found.copy_bytes_per_s < 1e13
    assert 1e7 < found.flops_per_s["fp32"] < 1e13


def test_rates_follow_from_times_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best round counts; a copy reads and writes."""

    class Found:
        min, median = 2e-3, 3e-3

    monkeypatch.setattr(module, "measure", lambda *a, **k: {"": Found})
    monkeypatch.setitem(module._SIZES, "cpu", (64, 1000))
    found = measure_ceilings(CPU)
    assert found.copy_bytes_per_s == pytest.approx(2 * 4000 / 2e-3)
    assert found.flops_per_s["fp32"] == pytest.approx(2 * 64**3 / 2e-3)


def test_precision_is_put_back() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    a = torch.rand(8, 8)
    _, product = module._PRODUCTS["tf32"]
    assert torch.allclose(product(a, a), a @ a, atol=1e-2)
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "ceilings.json"
    write_ceilings(path, SOME)
    assert read_ceilings(path, "NVIDIA H200") == SOME
    with pytest.raises(InputError, match="exists"):
        write_ceilings(path, SOME)


def test_another_gpus_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ceilings.json"
    write_ceilings(path, SOME)
    with pytest.raises(InputError, match="measured on 'NVIDIA H200', not on NVIDIA H100"):
        read_ceilings(path, "NVIDIA H100")


@pytest.mark.parametrize(
    "change",
    [
        {"copy_bytes_per_s": 0},
        {"copy_bytes_per_s": "fast"},
        {"flops_per_s": {"bf16": float("inf")}},
        {"flops_per_s": {"bf16": float("nan")}},
        {"flops_per_s": {"bf16": None}},
        {"flops_per_s": 3},
        {"extra": 1},
    ],
    ids=str,
)
def test_impossible_figures_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps(asdict(SOME) | change))
    with pytest.raises(InputError, match=r"ceilings\.json: "):
        read_ceilings(path, "NVIDIA H200")


@pytest.mark.parametrize("text", ["", "[]", "{}", "3"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ceilings.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not measured ceilings"):
        read_ceilings(path, "NVIDIA H200")
