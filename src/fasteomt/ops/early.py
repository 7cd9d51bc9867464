"""Programmatic dependent launch: the blocks of a kernel start while the kernel before it ends.

What a kernel does before `wait_for_inputs` (`ops.early_kernels`) overlaps with its predecessor: being
launched, setting up, reading weights. Until then it may neither read what any kernel before it wrote nor
write what they read. All kernels of a chain wait, so that whoever goes on knows that everything before has
ended: CUDA C++ programming guide, "Programmatic Dependent Launch and Synchronization". It takes sm_90.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
    """Keywords with which Triton launches a kernel early; none in its interpreter, which knows none."""
    from fasteomt.ops.early_kernels import EARLY  # needs Triton, which not every build of torch brings

    return {"launch_pdl": True} if EARLY.value and starts_early() else {}
