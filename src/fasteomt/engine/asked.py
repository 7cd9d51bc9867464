"""What a plan's groups ask of which op, found without weights or a GPU; and who is fastest at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from fasteomt.engine.binding import Binder
from fasteomt.engine.packing import Packing
from fasteomt.engine.tuning import Table, table_for, usable
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target
from fasteomt.plan import Group, Plan

# An implementation's name in a stack, never in a plan: the fastest one that was measured.
TUNED = "tuned"
# What it stands for where nothing was.
UNTUNED = "fused"
# The work that a plan is made for, so that it doesn't depend on how many crops a frame has.
NOMINAL_CROPS = 2


@dataclass(frozen=True)
class Asked:
    """`problem` is op's; `rows`: how a block's rows lie, None outside of blocks."""

    group: Group
    op: str
    problem: Any
    rows: Rows | None


@lru_cache(maxsize=16)
def asked(spec: ModelSpec, plan: Plan, crops: int) -> tuple[Asked, ...]:
    """Exactly what `engine.binding.bind` would look for, in order.

    Raises:
        InputError: as `bind`.
    """
    found: list[Asked] = []

    def record(
        group: Group, op: str, problem: object, rows: Rows | None
    ) -> tuple[ModuleType, dict[str, Any]]:
        found.append(Asked(group, op, problem, rows))
        return import_module(f"fasteomt.ops.{op}.reference"), {}

    # Shapes are all that counts: tensors of this device have nothing else.
    nowhere = torch.device("meta")
    with nowhere:
        weights = Eomt(spec).state_dict()
    packing = Packing(spec, weights, nowhere)
    Binder(spec, plan, packing, nowhere, crops, spec.crop_size, record).bind()
    return tuple(found)


def resolved(spec: ModelSpec, plan: Plan, target: Target, table: Table | None) -> Plan:
    """The plan with what is fastest in the place of 'tuned'.

    Args:
        table: None for what is known of the GPU here that is `target`.
    """
    table = table_for(target) if table is None else table
    fastest: dict[Group, str] = {}
    if table.entries:
        for one in asked(spec, plan, NOMINAL_CROPS):
            names = (entry.implementation for entry in table.ranked(one.op, one.problem))
            here = (name for name in names if usable(target, one.op, name, one.problem))
            fastest[one.group] = next(here, UNTUNED)
    return Plan(
        tuple(
            replace(group, implementation=fastest.get(group, UNTUNED))
            if group.implementation == TUNED
            else group
            for group in plan.groups
        )
    )
