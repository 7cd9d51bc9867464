"""What nvidia-smi says is read as it is meant, and what it can't say is never made up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fasteomt.bench import telemetry
from fasteomt.bench.telemetry import Sample, Telemetry, parse, sample, summarise
from fasteomt.errors import UnsupportedError

UUID = "GPU-8d1ab2c4-0e9e-7c14-6a3e-0b5f3a1c9d77"
OTHER = "GPU-00000000-0e9e-7c14-6a3e-0b5f3a1c9d77"
GPU = torch.device("cuda", 0)


def test_a_line_is_read_with_its_reasons() -> None:
    answer = f"{OTHER}, 345, 2619, 71.20, 27, 0x0000000000000001\n{UUID}, 1755, 3201, 689.41, 61, 0x24\n"
    assert parse(answer, UUID) == Sample(1755, 3201, 689.41, 61, ("sw_power_cap", "sw_thermal_slowdown"))
    assert parse(answer, OTHER).reasons == ("gpu_idle",)


def test_what_the_driver_does_not_tell_is_none() -> None:
    answer = f"{UUID}, 1980, [N/A], [Not Supported], N/A, [N/A]"
    assert parse(answer, UUID) == Sample(1980, None, None, None, ())


def test_a_reason_without_a_name_is_kept() -> None:
    assert parse(f"{UUID}, 1980, 3201, 400, 50, 0x0000000000001008", UUID).reasons == (
        "hw_slowdown",
        "0x1000",
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "No devices were found",
        f"{OTHER}, 1, 2, 3, 4, 0x0",
        f"{UUID}, 1980",
        f"{UUID}, fast, 2, 3, 4, 0x0",
    ],
)
def test_other_answers_are_refused(answer: str) -> None:
    with pytest.raises(UnsupportedError, match="nvidia-smi"):
        parse(answer, UUID)


def test_the_range_over_samples() -> None:
    found = summarise(
        [
            Sample(1755, 3201, 650.0, 60, ("sw_power_cap",)),
            Sample(1700, 3201, None, 62, ("sw_power_cap", "hw_slowdown")),
        ]
    )
    assert found == Telemetry(
        n=2,
        sm_mhz=(1700, 1755),
        memory_mhz=(3201, 3201),
        watts=(650.0, 650.0),
        celsius=(60, 62),
        reasons=("sw_power_cap", "hw_slowdown"),
    )
    assert summarise([None, None]) is None
    only = summarise([Sample(None, None, None, None, ())])
    assert only is not None and only.watts is None


def test_the_cpu_has_none() -> None:
    assert sample(torch.device("cpu")) is None


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(telemetry, "gpu_uuid", lambda device: UUID)


def test_the_gpu_is_asked_for_by_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{UUID}, 1980, 3201, 500.5, 55, 0x0000000000000000"
    _install(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/arguments; echo "{line}"')
    assert sample(GPU) == Sample(1980, 3201, 500.5, 55, ())
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments == [
        f"--id={UUID}",
        "--query-gpu=uuid,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active",
        "--format=csv,noheader,nounits",
    ]


def test_a_failure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, "echo 'no driver'; exit 9")
    with pytest.raises(UnsupportedError, match="nvidia-smi failed: 'no driver'"):
        sample(GPU)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UnsupportedError, match="not on the PATH"):
        sample(GPU)
