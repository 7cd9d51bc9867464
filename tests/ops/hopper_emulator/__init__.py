"""Runs `ops.linear.cuda` without a GPU: its real CUDA source, built by a C++ compiler for a model of Hopper.

`hopper_gemm.cu` and `hopper_epilogue.cuh` are compiled as they are, and the host's side of `ops.linear.cuda`
deals tiles and packs parameters as on a GPU. Only the instructions in `hopper_ptx.cuh` are replaced, by
`hopper_ptx.cuh` here, and what `compat.nvrtc` asks of the driver.

What is modelled (`machine.cpp`): all threads of a cluster, in any order that a seed gives; shared memory and
its bounds; mbarriers with arrivals, bytes and phases, across the blocks of a cluster; copies of boxes with
the 128-byte swizzle and multicast, late and in any order; products of warpgroups by descriptors, which read
their operands only when they are waited for; named barriers; and lanes of a warp that run apart unless an
instruction joins them. It reports deadlocks, wrong counts of arrivals or bytes, accesses out of bounds, and
barriers that are used before they are made or after their block has ended.

What this can't show: that instructions and descriptors mean what we take them to mean, since kernel and model
come from the same reading of the manual; missing fences and weak memory order between warps; registers and
time. Clusters run one after another. Only hardware can confirm the rest: `tests/gpu/test_gpu_linear_cuda.py`.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops.linear import cuda
from fasteomt.ops.target import Target

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", f"-I{HERE}")

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
        assert threads == cuda.THREADS
        x, weight, job = arguments
        maps = ctypes.byref(x), ctypes.byref(weight)
        problem = self.library.emulate(blocks, *maps, job, ctypes.sizeof(job), self.shared, self.seed)
        if problem:
            raise KernelFault(problem.decode())


class Emulator:
    """Builds kernels in `folder`, each once."""

    def __init__(self, compiler: str, folder: Path) -> None:
        self._compiler, self._folder = compiler, folder
        self._libraries: dict[tuple[str, ...], ctypes.CDLL] = {}
        self._machine = folder / "machine.o"
        self._compile("-c", str(HERE / "machine.cpp"), "-o", str(self._machine))

    @contextmanager
    def in_place_of_gpu(self, processors: int, seed: int = 0, bug: Sequence[Edit] = ()) -> Iterator[None]:
        """Within it, `cuda.run` takes tensors of the CPU and runs on a Hopper GPU of `processors`
        multiprocessors, with `bug` in its source.

        Raises:
            KernelFault: in `cuda.run`, what the kernel did wrong.
        """

        def build(
            source: str, arch: str, options: tuple[str, ...], headers: tuple[tuple[str, str], ...]
        ) -> ctypes.CDLL:
            sources = {"hopper_gemm.cu": source, **dict(headers)}
            del sources["hopper_ptx.cuh"]  # ours is found instead
            return self._build(sources, options, bug)

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
        library = folder / "kernel.so"
        inputs = (str(HERE / "launch.cpp"), str(self._machine))
        self._compile(f"-I{folder}", *defined, "-shared", *inputs, "-o", str(library))
        loaded = ctypes.CDLL(str(library))
        loaded.emulate.restype = ctypes.c_char_p
        return loaded

    def _compile(self, *arguments: str) -> None:
        done = subprocess.run([self._compiler, *FLAGS, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]


def _tensor_map(matrix: Tensor, box: tuple[int, int]) -> TensorMap:
    assert box[1] == cuda.BLOCK_K and matrix.stride(1) == 1 and matrix.data_ptr() % 16 == 0
    return TensorMap(matrix.data_ptr(), *matrix.shape, matrix.stride(0), box[0])


def _forget_launches() -> None:
    """`cuda` keeps what it built for a device and a problem."""
    cuda._launch.cache_clear()
    cuda._kernel.cache_clear()
