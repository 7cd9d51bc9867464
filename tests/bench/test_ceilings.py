"""Ceilings are measured for what runs, and follow from times and sizes."""

from __future__ import annotations

from datetime import datetime

import pytest
import torch

from fasteomt.bench import ceilings as module
from fasteomt.bench.ceilings import measure_ceilings
from fasteomt.capabilities import hardware_name

CPU = torch.device("cpu")


def test_the_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._SIZES, "cpu", (64, 2**16))
    found = measure_ceilings(CPU, seconds=0.01)
    assert found.gpu == hardware_name(CPU)
    assert found.torch == torch.__version__
    assert datetime.fromisoformat(found.date).tzinfo is not None
    assert "fp32" in found.flops_per_s
    assert not {"tf32", "fp8_e4m3"} & found.flops_per_s.keys()  # a GPU's
    # no CPU that runs this is outside these, however busy it is
    assert 1e6 < found.copy_bytes_per_s < 1e13
    assert 1e5 < found.flops_per_s["fp32"] < 1e13


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
