"""Programmatic dependent launch: the blocks of a kernel start while the kernel before it ends.

What a kernel does before `wait_for_inputs` overlaps with its predecessor: being launched, setting up, reading
weights. Until then it may neither read what any kernel before it wrote nor write what they read. All kernels
of a chain wait, so that whoever goes on knows that everything before has ended: CUDA C++ programming guide,
"Programmatic Dependent Launch and Synchronization". It takes sm_90 or newer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import triton
import triton.language as tl

EARLY = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has no such instructions

_this_thread = threading.local()


@contextmanager
def ordinary_launches() -> Iterator[None]:
    """Kernels that this thread launches meanwhile start when all before them has ended.

    For those that follow kernels of two streams: an early launch knows one predecessor.
    """
    before = starts_early()
    _this_thread.early = False
    try:
        yield
    finally:
        _this_thread.early = before


def starts_early() -> bool:
    return getattr(_this_thread, "early", True)


def early() -> dict[str, bool]:
    """Keywords with which Triton launches a kernel early."""
    return {"launch_pdl": True} if EARLY.value and starts_early() else {}


@triton.jit
def let_next_start() -> None:
    """The next kernel's blocks may take the places that this one's leave."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs() -> None:
    """Go on when all kernels before have ended and what they wrote is visible."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
