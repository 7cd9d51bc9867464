"""The machine and the sources that a measurement comes from."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from fasteomt.capabilities import driver, hardware_name, installed_version
from fasteomt.provenance import commit, source_digest

Text = Annotated[str, Field(min_length=1)]


class Record(BaseModel):
    """Base of all that goes into results.json: no unknown fields, no conversions, no NaN, no changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Environment(Record):
    """Where and with what a run was made.

    `gpu` is the GPU's name, or the processor's in a run on the CPU; `arch` 'sm_90', or the processor's
    architecture. `driver`, `triton` and `commit` are None where there is none. `source` is the digest of the
    package's sources, `date` UTC. `clocks_mhz` and `watts` are the lowest and the highest seen during the
    run; empty where they were not read, as on a CPU.
    """

    gpu: Text
    arch: Text
    driver: str | None
    torch: Text
    triton: str | None
    commit: str | None
    source: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    clocks_mhz: tuple[float, ...] = ()
    watts: tuple[float, ...] = ()


def current(device: torch.device) -> Environment:
    """This machine and these sources, now; clocks and power are for the run to fill in."""
    on_gpu = device.type == "cuda"
    return Environment(
        gpu=hardware_name(device),
        arch=_cuda_arch(device) if on_gpu else platform.machine(),
        driver=driver()[0] if on_gpu else None,
        torch=str(torch.__version__),
        triton=installed_version("triton"),
        commit=commit(),
        source=source_digest(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _cuda_arch(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
