"""Runs kernels for Hopper without a GPU: their real CUDA source, built by a C++ compiler for a model of it.

The sources of `ops.linear.cuda` and `ops.attention.cuda` are compiled as they are, and their host's side
deals tiles and packs parameters as on a GPU. Only the instructions in headers `hopper_..._ptx.cuh` are
replaced, by headers of the same names here, and what `compat.nvrtc` asks of the driver.

What is modelled (`machine.cpp`): all threads of a cluster, in any order that a seed gives; shared memory
and its bounds; mbarriers with arrivals, bytes and phases, across the blocks of a cluster; copies of
boxes with the 128-byte swizzle and multicast, late and in any order; products of warpgroups by
descriptors or of registers, which read their operands only when they are waited for; fences between
threads' accesses and those of products and copies; a warp's own products, and how it loads, stores and
transposes matrices; named barriers; and lanes of a warp that run apart unless an instruction joins them.
Some threads are so slow that all others first get as far as they can. It reports deadlocks, wrong counts
of arrivals or bytes, accesses out of bounds, operands that change under way, and barriers that are used
before they are made or after their block has ended.

What this can't show: that instructions and descriptors mean what we take them to mean, since kernel and model
come from the same reading of the manual; weak memory order between warps; registers and time. Clusters run
one after another. Only hardware can confirm the rest: `tests/gpu/test_gpu_*_cuda.py`.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops.attention import cuda as attention
from fasteomt.ops.depthwise_masks import cuda as depthwise_masks
from fasteomt.ops.linear import cuda as linear
from fasteomt.ops.target import Target

HERE = Path(__file__).parent
MODULES = (linear, attention, depthwise_masks)
# As many rows before and after a result as a tile has, which nobody may touch.
GUARD, UNTOUCHED = 128, 77.0
COMPILER = shutil.which("g++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs Linux and a C++ compiler, g++ or c++"
)
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{HERE}")

# (old, new): text of the kernel's source, which must be there once, and what a planted bug makes of it.
Edit = tuple[str, str]


class KernelFault(Exception):
    """The model found that the kernel did what it must not do."""


class TensorMap(ctypes.Structure):
    """As in `machine.h`."""

    _fields_ = (
        ("elements", ctypes.c_void_p),
        ("rows", ctypes.c_longlong),
        ("columns", ctypes.c_longlong),
        ("stride", ctypes.c_longlong),
        ("box_rows", ctypes.c_int),
    )


@dataclass(frozen=True)
class Kernel:
    """In place of `nvrtc.Kernel`."""

    library: ctypes.CDLL
    shared: int
    seed: int

    def launch(
        self, blocks: int, threads: int, arguments: Sequence[ctypes.Structure | ctypes.Array], *, early: bool
    ) -> None:
        *given, job = arguments
        maps = (TensorMap * len(given))(*(each for each in given if isinstance(each, TensorMap)))
        parameters = (maps, len(maps), job, ctypes.sizeof(job))
        problem = self.library.emulate(blocks, threads, *parameters, self.shared, self.seed)
        if problem:
            raise KernelFault(problem.decode())


class Emulator:
    """Builds kernels, each once."""

    def __init__(self, compiler: str) -> None:
        self._compiler, self._temporary = compiler, tempfile.TemporaryDirectory()
        self._folder = folder = Path(self._temporary.name)
        self._libraries: dict[tuple[str, ...], ctypes.CDLL] = {}
        self._machine = folder / "machine.o"
        self._compile("-c", str(HERE / "machine.cpp"), "-o", str(self._machine))

    @contextmanager
    def in_place_of_gpu(self, processors: int, seed: int = 0, bug: Sequence[Edit] = ()) -> Iterator[None]:
        """Within it, `run` of a `cuda` module takes tensors of the CPU and runs on a Hopper GPU of
        `processors` multiprocessors, with `bug` in its source.

        Raises:
            KernelFault: in `run`, what the kernel did wrong.
        """

        def build(
            source: str, arch: str, options: tuple[str, ...], headers: tuple[tuple[str, str], ...]
        ) -> ctypes.CDLL:
            kept = {name: text for name, text in headers if not (HERE / name).exists()}
            return self._build({"kernel.cu": source, **kept}, options, bug)

        def load(library: ctypes.CDLL, name: str, shared: int) -> Kernel:
            return Kernel(library, shared, seed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nvrtc, "compile_source", build)
            patch.setattr(nvrtc, "load", load)
            patch.setattr(nvrtc, "tensor_map", _tensor_map)
            patch.setattr(torch.cuda, "device", lambda device: nullcontext())
            patch.setattr(torch.cuda, "current_device", lambda: 0)
            patch.setattr(Target, "of", staticmethod(lambda device: Target.named("sm_90", processors)))
            _forget_launches()
            try:
                yield
            finally:
                _forget_launches()

    def _build(self, sources: dict[str, str], options: tuple[str, ...], bug: Sequence[Edit]) -> ctypes.CDLL:
        for old, new in bug:
            assert sum(text.count(old) for text in sources.values()) == 1, f"not once in the source: {old}"
            sources = {name: text.replace(old, new) for name, text in sources.items()}
        key = (*sources.values(), *options)
        if key not in self._libraries:
            self._libraries[key] = self._library(sources, options)
        return self._libraries[key]

    def _library(self, sources: dict[str, str], options: tuple[str, ...]) -> ctypes.CDLL:
        folder = self._folder / str(len(self._libraries))
        folder.mkdir()
        for name, text in sources.items():
            (folder / name).write_text(text, "utf-8")
        macro = "--define-macro="
        defined = [f"-D{option.removeprefix(macro)}" for option in options if option.startswith(macro)]
        kernel = re.search(r'extern "C" __global__ .* (\w+)\($', sources["kernel.cu"], re.MULTILINE)
        assert kernel
        defined.append(f"-DKERNEL={kernel[1]}")
        library = folder / "kernel.so"
        inputs = (str(HERE / "launch.cpp"), str(self._machine))
        self._compile(f"-I{folder}", *defined, "-shared", *inputs, "-o", str(library))
        loaded = ctypes.CDLL(str(library))
        loaded.emulate.restype = ctypes.c_char_p
        return loaded

    def _compile(self, *arguments: str) -> None:
        done = subprocess.run([self._compiler, *FLAGS, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]


@cache
def emulator() -> Emulator:
    """The one that all tests share."""
    assert COMPILER is not None
    return Emulator(COMPILER)


def fault_of(launch: Callable[[Tensor], object], out: Tensor) -> str:
    """What went wrong in `launch`, or ''.

    It gets a copy of `out` (rows, columns), between rows that it may not touch, and `out` gets its result.
    """
    room = torch.full((GUARD + len(out) + GUARD, out.shape[1]), UNTOUCHED, dtype=out.dtype)
    try:
        launch(room[GUARD:-GUARD].copy_(out))
    except KernelFault as fault:
        return str(fault)
    out.copy_(room[GUARD:-GUARD])
    untouched = (room[:GUARD] == UNTOUCHED).all() and (room[-GUARD:] == UNTOUCHED).all()
    return "" if untouched else "rows before or after the result were written"


def _tensor_map(matrix: Tensor, box: tuple[int, int]) -> TensorMap:
    assert box[1] == 64 and matrix.stride(1) == 1 and matrix.data_ptr() % 16 == 0
    return TensorMap(matrix.data_ptr(), *matrix.shape, matrix.stride(0), box[0])


def _forget_launches() -> None:
    """The modules keep what they built for a device and a problem."""
    for module in MODULES:
        module._launch.cache_clear()
        module._kernel.cache_clear()
