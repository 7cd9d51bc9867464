"""A network whose products run in the emulator of Hopper: the engine tells the kernel what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hopper_emulator import emulator, needs_compiler

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine.kernels import Kernels
from fasteomt.engine.tuning import Table
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.target import Target
from fasteomt.plan import Plan
from fasteomt.stacks import get_stack

pytestmark = needs_compiler

CPU = torch.device("cpu")
SPEC = ModelSpec.from_name(
    "vitt16", embed_dim=128, num_heads=2, ffn_hidden=256, depth=3, num_joint_blocks=1, num_queries=8,
    image_size=(64, 64),
)  # fmt: skip


@pytest.mark.parametrize("norm", ["add_norm", "linear"])
def test_the_network_is_the_references(norm: str) -> None:
    stack = replace(get_stack("fp16"), norm=norm)
    groups = stack.plan(SPEC, Target.named("sm_90"), Table()).groups
    blocks = [group for group in groups if group.sites[0].startswith("block.")]
    products = {group.sites for group in blocks if {"qkv", "proj", "fc1", "fc2"} & _parts(group.sites)}
    assert len(products) == 4 * SPEC.depth
    assert any("norm2" in _parts(sites) for sites in products) == (norm == "linear")
    plain = Plan(tuple(replace(group, implementation="reference") for group in groups))
    ours = Plan(
        tuple(
            replace(group, implementation="cuda") if group.sites in products else group
            for group in plain.groups
        )
    )
    weights = random_checkpoint(SPEC).weights
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64)

    def logits(plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
        kernels = Kernels(SPEC, weights, plan, CPU, graph=False)
        with torch.inference_mode():
            return kernels.logits(images)

    expected = logits(plain)
    with emulator().in_place_of_gpu(4):
        found = logits(ours)
    for one, other in zip(found, expected, strict=True):
        assert not torch.equal(one, other)  # sums in another order: it wasn't the reference again
        assert (one - other).norm() < 2e-3 * other.norm()


def _parts(sites: tuple[str, ...]) -> set[str]:
    return {site.rpartition(".")[2] for site in sites}
