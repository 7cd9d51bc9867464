"""For Triton kernels that are launched early, see `ops.early`: each calls both of these."""

from __future__ import annotations

import triton
import triton.language as tl

EARLY = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has no such instructions


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
