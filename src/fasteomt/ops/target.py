"""What kernels are made for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fasteomt.errors import InputError, brief

# Shared memory that one program can have, bytes: CUDA C++ Programming Guide, technical specifications per
# compute capability ("maximum amount of shared memory per thread block").
_SHARED_MEMORY = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 103: 232448, 120: 101376}


@dataclass(frozen=True)
class Target:
    """`arch`: 'cpu' or an SM architecture such as 'sm_90'; `shared_memory`: bytes a program can have;
    `processors`: streaming multiprocessors (cores on a CPU don't count)."""

    arch: str
    shared_memory: int = 0
    processors: int = 0

    @property
    def sm(self) -> int:
        """The architecture as a number, 90 for 'sm_90'; 0 for the CPU."""
        return int(self.arch.removeprefix("sm_")) if self.arch.startswith("sm_") else 0

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """What `device` is, as its driver tells."""
        if device.type != "cuda":
            return cls("cpu")
        found = torch.cuda.get_device_properties(device)
        return cls(
            f"sm_{found.major}{found.minor}",
            found.shared_memory_per_block_optin,  # type: ignore[attr-defined]  # not in torch's stubs
            found.multi_processor_count,
        )

    @classmethod
    def named(cls, arch: str, processors: int = 132) -> Target:
        """A target that needn't be here, for plans and for compiling ahead of time.

        Raises:
            InputError: not 'cpu', nor an architecture whose limits are known here.
        """
        if arch == "cpu":
            return CPU
        limits = {f"sm_{number}": limit for number, limit in _SHARED_MEMORY.items()}
        if arch not in limits:
            raise InputError(f"unknown architecture {brief(arch)}: choose one of cpu, {', '.join(limits)}")
        return cls(arch, limits[arch], processors)


CPU = Target("cpu")


def lacks_16_bit_gpu(target: Target, dtype: torch.dtype, *, use: str) -> str | None:
    """Why a GPU kernel on BF16 or FP16 can't be had for `dtype` on `target`; None if it can.

    `use`: the implementation to take instead.
    """
    if target.arch == "cpu":
        return f"needs a GPU: use '{use}'"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"{dtype} is not 16-bit: use '{use}'"
    return None
