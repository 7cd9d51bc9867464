"""The machine that a measurement names is this one."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import pytest
import torch
from pydantic import ValidationError

from fasteomt.bench import environment
from fasteomt.capabilities import cpu_name
from fasteomt.provenance import commit, source_digest


def test_current_on_the_cpu() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    found = environment.current(torch.device("cpu"))
    assert cpu_name() in found.gpu
    assert found.arch == platform.machine()
    assert found.driver is None
    assert found.torch == torch.__version__
    assert type(found.torch) is str
    assert (found.commit, found.source) == (commit(), source_digest())
    assert before <= datetime.fromisoformat(found.date) <= datetime.now(UTC)
    assert found.clocks_mhz == found.watts == ()
    assert environment.Environment.model_validate_json(found.model_dump_json()) == found


def test_current_on_a_gpu_names_it_even_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, device.index))
    monkeypatch.setattr(environment, "driver", lambda: (None, "13.0"))
    monkeypatch.setattr(environment, "installed_version", lambda name: None)
    found = environment.current(torch.device("cuda", 1))
    assert (found.gpu, found.arch) == ("GPU 1", "sm_121")
    assert found.driver is found.triton is None


@pytest.mark.gpu
def test_current_on_this_gpu() -> None:
    found = environment.current(torch.device("cuda", 0))
    assert found.gpu == torch.cuda.get_device_name(0)
    assert found.arch.startswith("sm_")
    assert found.driver


@pytest.mark.parametrize(
    "change",
    [{"gpu": ""}, {"date": "yesterday"}, {"source": "abc"}, {"clocks_mhz": (float("nan"),)}, {"x": 1}],
)
def test_what_no_environment_may_hold(change: dict) -> None:
    found = environment.current(torch.device("cpu"))
    with pytest.raises(ValidationError):
        environment.Environment(**dict(found) | change)
