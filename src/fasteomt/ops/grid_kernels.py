"""`ops.grid` inside Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def share(coordinate: tl.tensor, CELLS: tl.constexpr, STEP: tl.constexpr, LEVEL: tl.constexpr) -> tl.tensor:
    """What one coordinate of a pixel adds to its row within the crop; both together are the row.

    CELLS, patches from one to the next along the coordinate, and STEP, what its lowest bit counts, are `side`
    and 2 for y, 1 and 1 for x.
    """
    part = (coordinate >> LEVEL) * CELLS
    for done in tl.static_range(LEVEL):
        part = 4 * part + STEP * ((coordinate >> (LEVEL - 1 - done)) & 1)
    return part
