"""What kernels written for Hopper share besides `hopper_ptx.cuh` and `hopper_tiles.cuh`: build and launch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from importlib.resources import files

import torch

from fasteomt.compat import nvrtc
from fasteomt.ops.early import starts_early
from fasteomt.ops.target import Target

_ARCH = "sm_90a"
_HEADERS = ("hopper_ptx.cuh", "hopper_tiles.cuh")
TYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}  # as PTX writes them


def unsupported(target: Target, dtype: torch.dtype) -> str | None:
    """Why these kernels can't be had for `dtype` on `target`; None if they can."""
    if target.sm != 90:
        return "needs sm_90: it is written in Hopper's own instructions"
    if dtype not in TYPES:
        return f"{dtype} isn't a 16-bit format: float16 or bfloat16 only"
    return None


def compiled(
    package: str, names: Sequence[str], dtype: torch.dtype, values: Mapping[str, object]
) -> nvrtc.Binary:
    """A kernel's machine code; needs no GPU.

    Args:
        package: that has the files `names`, of which the first is compiled and includes the others.
        values: of macros, besides TYPE, which is `dtype` as PTX writes it.
    """
    places = [(package, name) for name in names] + [(__package__ or "", name) for name in _HEADERS]
    (_, source), *headers = (
        (name, files(folder).joinpath(name).read_text("utf-8")) for folder, name in places
    )
    options = (f"--define-macro={name}={value}" for name, value in {"TYPE": TYPES[dtype], **values}.items())
    return nvrtc.compile_source(source, _ARCH, ("--ptxas-options=-v", *options), tuple(headers))


def operands(prefix: str, array: str, count: int, a: int = 1) -> dict[str, str]:
    """Macros that stand for the operands of a warpgroup's product, as inline PTX writes them.

    They are `count` sums, `<prefix>_REGISTERS`, elements of `array`, which the product overwrites
    (`<prefix>_OUTPUTS`) or adds to (`<prefix>_SUMS`); then `<prefix>_A`, a descriptor or `a` registers; then
    `<prefix>_B`, a descriptor.
    """
    names = [f"%{i}" for i in range(count + a + 1)]
    return {
        f"{prefix}_REGISTERS": '"' + ", ".join(names[:count]) + '"',
        f"{prefix}_OUTPUTS": ", ".join(f'"=f"({array}[{i}])' for i in range(count)),
        f"{prefix}_SUMS": ", ".join(f'"+f"({array}[{i}])' for i in range(count)),
        f"{prefix}_A": '"' + ", ".join(names[count : count + a]) + '"',
        f"{prefix}_B": f'"{names[-1]}"',
    }


def launch(
    kernel: nvrtc.Kernel, blocks: int, threads: int, maps: Sequence[nvrtc.TensorMap], job: bytes
) -> None:
    """Launch a kernel whose parameters are `maps`, then a struct that `job` holds; early, where it may."""
    arguments: list[nvrtc.Argument] = [*maps, ctypes.create_string_buffer(job, len(job))]
    kernel.launch(blocks, threads, arguments, early=starts_early())
