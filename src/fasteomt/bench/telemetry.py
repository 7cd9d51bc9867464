"""The state of a GPU while it works: clocks, power, temperature and what slows it down."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fasteomt.errors import UnsupportedError, brief

_FIELDS = ("uuid", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")

# Bits of nvmlClocksEventReasons (nvml.h), by the names that nvidia-smi gives them.
_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}


@dataclass(frozen=True)
class Sample:
    """SM and memory clock in MHz, board power in W, temperature in °C, each None where the driver doesn't
    tell; `reasons` for which clocks are held down."""

    sm_mhz: float | None
    memory_mhz: float | None
    watts: float | None
    celsius: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Telemetry:
    """Smallest and largest value over `n` samples, in `Sample`'s units; `reasons` seen in any of them."""

    n: int
    sm_mhz: tuple[float, float] | None
    memory_mhz: tuple[float, float] | None
    watts: tuple[float, float] | None
    celsius: tuple[float, float] | None
    reasons: tuple[str, ...]


def gpu_uuid(device: torch.device) -> str:
    """The physical GPU's name, e.g. 'GPU-5e2fb0a1-...', as nvidia-smi spells it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def sample(device: torch.device) -> Sample | None:
    """Ask nvidia-smi once (some 0.1 s); None on the CPU.

    Raises:
        UnsupportedError: nvidia-smi isn't there or doesn't answer.
    """
    if device.type == "cpu":
        return None
    uuid = gpu_uuid(device)
    command = [
        "nvidia-smi",
        f"--id={uuid}",
        f"--query-gpu={','.join(_FIELDS)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise UnsupportedError(
            "nvidia-smi is not on the PATH, and times need the GPU's clocks beside them: "
            "install the driver's tools"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnsupportedError("nvidia-smi did not answer in 60 s: check the driver") from None
    if done.returncode != 0:
        raise UnsupportedError(f"nvidia-smi failed: {brief((done.stdout + done.stderr).strip())}")
    return parse(done.stdout, uuid)


def parse(answer: str, uuid: str) -> Sample:
    """The line of `answer`, of nvidia-smi, that is about the GPU `uuid`.

    Raises:
        UnsupportedError: there is no such line, or it can't be read.
    """
    lines = [[cell.strip() for cell in line] for line in csv.reader(answer.splitlines())]
    line = next((line for line in lines if line and line[0] == uuid), None)
    if line is None or len(line) != len(_FIELDS):
        raise UnsupportedError(f"nvidia-smi says nothing of {uuid}: {brief(answer.strip())}")
    try:
        sm_mhz, memory_mhz, watts, celsius = (_number(cell) for cell in line[1:5])
        bits = 0 if _is_absent(line[5]) else int(line[5], 16)
    except ValueError:
        raise UnsupportedError(f"nvidia-smi's answer can't be read: {brief(answer.strip())}") from None
    known = tuple(name for bit, name in _REASONS.items() if bits & bit)
    unknown = bits & ~sum(_REASONS)
    return Sample(sm_mhz, memory_mhz, watts, celsius, known + ((f"{unknown:#x}",) if unknown else ()))


def summarise(samples: Iterable[Sample | None]) -> Telemetry | None:
    """The range over several samples; None if there are none, as on the CPU."""
    found = [one for one in samples if one is not None]
    if not found:
        return None
    return Telemetry(
        n=len(found),
        sm_mhz=_range([one.sm_mhz for one in found]),
        memory_mhz=_range([one.memory_mhz for one in found]),
        watts=_range([one.watts for one in found]),
        celsius=_range([one.celsius for one in found]),
        reasons=tuple(dict.fromkeys(reason for one in found for reason in one.reasons)),
    )


def _is_absent(cell: str) -> bool:
    return cell.startswith("[") or cell == "N/A"


def _number(cell: str) -> float | None:
    return None if _is_absent(cell) else float(cell)


def _range(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None
