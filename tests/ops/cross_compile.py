"""Compile Triton kernels for GPUs that are not here, and read what the compiler made of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHS = ("sm_90", "sm_120")


@dataclass(frozen=True)
class Compiled:
    """`shared`: bytes of shared memory a program; `spilled`: bytes of stack a thread (0: no spills)."""

    ptx: str
    shared: int
    spilled: int
    registers: int


def compile_for(
    arch: str, kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any], **options: Any
) -> Compiled:
    """Compile a `triton.jit` function.

    Args:
        signature: type by parameter, as Triton writes them ('*bf16', 'i32', 'fp32',
            'tensordesc<bf16[128,64]>'); constants: value by constexpr parameter.
        options: num_warps, num_stages.
    """
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    # Pointers that torch allocates are aligned to 16 bytes, and the launcher tells the compiler so.
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if types[name][0] == "*"
    }
    source = ASTSource(kernel, types, places, aligned)
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    found = triton.compile(source, target=target, options=options)
    return Compiled(found.asm["ptx"], found.metadata.shared, *_resources(found.asm["cubin"]))


def _resources(cubin: bytes) -> tuple[int, int]:
    """(bytes of stack, registers) a thread."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack, registers = re.search(r"STACK:(\d+)", said), re.search(r"REG:(\d+)", said)
    assert stack and registers, said
    return int(stack[1]), int(registers[1])
