"""The time below which hardware can't go, per site: costs over measured ceilings.

Matrix products, convolutions that are such products, and attention are floored by arithmetic, at the
measured peak of their number format; every other site by memory, at the measured copy bandwidth. A product's
own bytes don't count, though small products wait for them: kernels that compute its neighbours as well need
not move them, and a floor must not be too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fasteomt.bench.ceilings import Ceilings
from fasteomt.bench.costs import SiteCost
from fasteomt.errors import UnsupportedError

COMPUTE_OPS = frozenset({"gemm", "conv", "attention"})


@dataclass(frozen=True)
class SiteFloor:
    """`seconds` at best; `bound` is 'arithmetic' or 'memory'."""

    cost: SiteCost
    seconds: float
    bound: str


@dataclass(frozen=True)
class FloorTable:
    """Floors in execution order.

    `memory_s` assumes that every site reads and writes memory: kernels that compute several sites at once may
    go below it. Nothing goes below `arithmetic_s` in these formats.
    """

    rows: tuple[SiteFloor, ...]

    @property
    def arithmetic_s(self) -> float:
        return sum(row.seconds for row in self.rows if row.bound == "arithmetic")

    @property
    def memory_s(self) -> float:
        return sum(row.seconds for row in self.rows if row.bound == "memory")

    @property
    def total_s(self) -> float:
        return self.arithmetic_s + self.memory_s

    def without_frame(self) -> FloorTable:
        """The model alone: without what makes crops of a frame and a mask of the logits."""
        return FloorTable(tuple(row for row in self.rows if not row.cost.site.startswith("frame.")))


def floor(cost: SiteCost, ceilings: Ceilings) -> float:
    """Seconds that the site takes at best.

    Raises:
        UnsupportedError: no peak was measured in the site's format.
    """
    if cost.op not in COMPUTE_OPS:
        return cost.bytes / ceilings.copy_bytes_per_s
    if cost.recipe not in ceilings.flops_per_s:
        raise UnsupportedError(
            f"site {cost.site}: no peak of '{cost.recipe}' was measured on {ceilings.gpu}, "
            f"only of {', '.join(ceilings.flops_per_s)}"
        )
    return cost.flops / ceilings.flops_per_s[cost.recipe]


def floor_table(costs: Sequence[SiteCost], ceilings: Ceilings) -> FloorTable:
    """The floor of every site, as `floor`."""
    return FloorTable(
        tuple(
            SiteFloor(cost, floor(cost, ceilings), "arithmetic" if cost.op in COMPUTE_OPS else "memory")
            for cost in costs
        )
    )
