"""CUDA C++ at run time: compiled by NVRTC, which torch brings, and launched through the driver.

Both are plain C interfaces, called by ctypes: NVRTC's user guide and the CUDA driver API reference describe
them. Compiling needs no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from fasteomt.compat.cubins import Binary, kept
from fasteomt.errors import UnsupportedError

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_EARLY_LAUNCH = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64
_TENSOR_MAP_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_NO_INTERLEAVE, _SWIZZLE_128B, _PROMOTE_256B, _FILL_ZEROS = 0, 3, 3, 0


@cache
def compile_source(
    source: str, arch: str, options: tuple[str, ...] = (), headers: tuple[tuple[str, str], ...] = ()
) -> Binary:
    """Compile CUDA C++ for 'sm_90a' or the like, once on this machine; `headers`: name and text of what it
    includes.

    Raises:
        RuntimeError: it doesn't compile, with the compiler's log.
        UnsupportedError: this torch has no NVRTC.
    """
    given = (f"--gpu-architecture={arch}", "--std=c++17", *options)
    return kept((_version(), source, given, headers), lambda: _compile(source, given, headers))


def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc_check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _compile(source: str, given: tuple[str, ...], headers: tuple[tuple[str, str], ...]) -> Binary:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    arguments = (ctypes.c_char_p * len(given))(*(each.encode() for each in given))
    names, texts = ((ctypes.c_char_p * len(headers))(*(h[i].encode() for h in headers)) for i in (0, 1))
    place = (ctypes.byref(program), source.encode(), b"kernel.cu", len(headers), texts, names)
    _nvrtc_check(nvrtc.nvrtcCreateProgram(*place))
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(given), arguments)
        log = _read(program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            raise RuntimeError(f"CUDA source doesn't compile with {given[0]}: {log}")
        return Binary(_read(program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


# Whatever has the bytes of the kernel's parameter.
Argument = ctypes.Structure | ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class Kernel:
    """A function loaded on one device; `shared`: bytes of dynamic shared memory that its launches get."""

    handle: int
    shared: int

    def launch(
        self, blocks: int, threads: int, arguments: Sequence[Argument], *, early: bool = False
    ) -> None:
        """On torch's current stream of the current device, which must be the kernel's.

        early: as a programmatic dependent of what is before it, see `ops.early`.
        """
        _enter_context()
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        attributes = (_Attribute * 1)(_Attribute(_EARLY_LAUNCH, value=int(early)))
        config = _LaunchConfig(
            (blocks, 1, 1),
            (threads, 1, 1),
            self.shared,
            torch.cuda.current_stream().cuda_stream,
            ctypes.addressof(attributes),
            len(attributes),
        )
        _check(_driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(self.handle), places, None))


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number that says what it is, then a union of 64 bytes; `value` is a part of it."""

    _fields_ = (
        ("which", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def load(binary: Binary, name: str, shared: int) -> Kernel:
    """The kernel `name`, declared extern "C", on the current device; it stays loaded."""
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    _enter_context()
    _check(driver.cuModuleLoadData(ctypes.byref(module), binary.cubin))
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    _check(driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared))
    assert function.value is not None
    return Kernel(function.value, shared)


class TensorMap(ctypes.Structure):
    """The copy engine's description of a matrix: CUtensorMap, a parameter that kernels get by value."""

    _fields_ = (("opaque", ctypes.c_ubyte * _TENSOR_MAP_BYTES),)


def tensor_map(matrix: Tensor, box: tuple[int, int]) -> TensorMap:
    """A map of a matrix for copies of `box` (rows, columns), zeros where it reaches beyond the matrix.

    In shared memory rows are 128 bytes, the box's width, in the 128-byte swizzle. `matrix` has unit stride
    along rows, and rows start at multiples of 16 bytes.
    """
    return _tensor_map(matrix.data_ptr(), matrix.dtype, tuple(matrix.shape), matrix.stride(0), box)


@lru_cache(maxsize=4096)
def _tensor_map(
    pointer: int, dtype: torch.dtype, shape: tuple[int, ...], stride: int, box: tuple[int, int]
) -> TensorMap:
    # The driver insists on its alignment while it writes one.
    room = (ctypes.c_ubyte * (_TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT))()
    aligned = TensorMap.from_buffer(room, -ctypes.addressof(room) % _TENSOR_MAP_ALIGNMENT)
    _check(
        _driver().cuTensorMapEncodeTiled(
            ctypes.byref(aligned),
            _TENSOR_MAP_TYPES[dtype],
            2,
            ctypes.c_void_p(pointer),
            (ctypes.c_uint64 * 2)(shape[1], shape[0]),
            (ctypes.c_uint64 * 1)(stride * dtype.itemsize),
            (ctypes.c_uint32 * 2)(box[1], box[0]),
            (ctypes.c_uint32 * 2)(1, 1),
            _NO_INTERLEAVE,
            _SWIZZLE_128B,
            _PROMOTE_256B,
            _FILL_ZEROS,
        )
    )
    return aligned


@cache
def _nvrtc() -> ctypes.CDLL:
    for name in (f"libnvrtc.so.{(torch.version.cuda or '').split('.')[0]}", "libnvrtc.so"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise UnsupportedError(f"no NVRTC with torch {torch.__version__}: install a build of torch for CUDA")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UnsupportedError("no CUDA driver, libcuda.so.1: install NVIDIA's driver") from None


def _enter_context() -> None:
    """The driver's calls need a context. A thread new to CUDA has none: it gets torch's, the primary one."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _check(_driver().cuCtxGetCurrent(ctypes.byref(context)))
    if context.value is None:
        _check(_driver().cuDeviceGet(ctypes.byref(device), torch.cuda.current_device()))
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        _check(_driver().cuCtxSetCurrent(context))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    """The program's log or cubin, by the pair of functions nvrtcGet<what>Size and nvrtcGet<what>."""
    size = ctypes.c_size_t()
    _nvrtc_check(_nvrtc()[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    out = ctypes.create_string_buffer(size.value)
    _nvrtc_check(_nvrtc()[f"nvrtcGet{what}"](program, out))
    return out.raw


def _nvrtc_check(code: int) -> None:
    if code:
        raise RuntimeError(f"NVRTC: {_nvrtc().nvrtcGetErrorString(code).decode()}")


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA driver: {(text.value or b'unknown error').decode()} ({code})")
