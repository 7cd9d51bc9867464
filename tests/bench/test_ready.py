"""How long new processes take to their first result: caches empty, then full, and left as they were."""

from __future__ import annotations

import os

import pytest
import torch
from row_samples import complaints

from fasteomt.bench import ready
from fasteomt.bench.ready import ready_rows
from fasteomt.stacks import Stack, get_stack

CPU = torch.device("cpu")


def spy(name: str, stack: Stack, device: str, crops: int) -> float:
    """Leaves a file in the caches, and tells by its answer how many there were."""
    found = 0
    for cache in ("FASTEOMT_CACHE", "TRITON_CACHE_DIR"):
        folder = os.environ[cache]
        os.makedirs(folder, exist_ok=True)
        found += len(os.listdir(folder))
        open(os.path.join(folder, "a kernel"), "w").close()
    assert (name, stack.name, device, crops) == ("vitt16", "fp16", "cpu", 2)
    return 1.0 + found


def fail(*_: object) -> float:
    raise RuntimeError("no such GPU")


def test_caches_are_empty_then_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    monkeypatch.delenv("FASTEOMT_CACHE", raising=False)
    monkeypatch.setattr(ready, "ready_seconds", spy)
    cold, warm = ready_rows("vitt16", CPU, get_stack("fp16"), crops=2)
    assert (cold.metric, cold.phase, cold.median) == ("ready_s", "cold", 1.0)
    assert (warm.phase, warm.median) == ("warm", 3.0)
    assert complaints([cold, warm]) == []
    assert os.environ["TRITON_CACHE_DIR"] == "/mine" and "FASTEOMT_CACHE" not in os.environ


def test_what_fails_has_no_time_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "ready_seconds", fail)
    for row in ready_rows("vitt16", CPU, get_stack("fp16"), crops=2):
        assert row.median is None and "no such GPU" in (row.note or "")


def test_a_real_engine_gets_ready() -> None:
    assert 0 < ready.ready_seconds("vitt16", get_stack("torch_bf16"), "cpu", 1) < 60
