"""A deep model out of a shallow trained one: every block is repeated, with its steps made smaller.

With LayerScale a block adds gamma * f(x) to the residual stream. k blocks that each add gamma / k * f do
about what the one did, as k small steps of an integrator do, and all of them work from the first step on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.model.spec import ModelSpec

BLOCK = re.compile(r"backbone\.blocks\.(\d+)\.(.+)")


def shallow(spec: ModelSpec, times: int) -> ModelSpec:
    """The same model with a `times`-th of its blocks, joint ones at least in part.

    Raises:
        InputError: the depth or the number of joint blocks can't be divided so.
    """
    if times < 1 or spec.depth % times or spec.num_joint_blocks % times:
        raise InputError(
            f"{spec.name}: {spec.depth} blocks, {spec.num_joint_blocks} of them joint, "
            f"can't be grown {times} times: choose a divisor of both"
        )
    return replace(spec, depth=spec.depth // times, num_joint_blocks=spec.num_joint_blocks // times)


def grown(weights: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """Weights of the model that is `times` as deep: block i becomes blocks i * times and following."""
    deep: dict[str, Tensor] = {}
    for name, weight in weights.items():
        found = BLOCK.fullmatch(name)
        if found is None:
            deep[name] = weight
            continue
        index, rest = int(found[1]), found[2]
        value = weight / times if rest.endswith(".gamma") else weight
        for k in range(times):
            deep[f"backbone.blocks.{index * times + k}.{rest}"] = value.clone()
    return deep
