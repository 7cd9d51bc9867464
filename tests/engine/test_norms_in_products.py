"""Norms given by the products before them: results stay, and plans say where it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_kernels import GEOMETRIES, SMALL, awake

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine.kernels import Kernels
from fasteomt.engine.tuning import Table
from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.ops.target import Target
from fasteomt.plan import Group, Plan
from fasteomt.stacks import get_stack

CPU, SM_90 = torch.device("cpu"), Target.named("sm_90")
HEADS = {"embed_dim": 128, "num_heads": 2, "ffn_hidden": 256}  # heads of 64: all kernels can have them


def in_fp32(plan: Plan) -> Plan:
    """The same groups, as plain torch in fp32."""
    return Plan(tuple(replace(group, implementation="reference", recipe="fp32") for group in plan.groups))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_results_stay(name: str) -> None:
    model, crops, changes = GEOMETRIES[name]
    spec = ModelSpec.from_name(model, **SMALL | changes | HEADS)
    plan = in_fp32(get_stack("fp16").plan(spec, SM_90, Table()))
    assert any("norm2" in group.sites[-1] and len(group.sites) == 3 for group in plan.groups)
    weights = awake(random_checkpoint(spec).weights)
    reference = Eomt(spec)
    reference.load_state_dict(weights)
    torch.manual_seed(0)
    images = torch.randn(crops, 3, spec.crop_size, spec.crop_size)
    with torch.inference_mode():
        expected = reference(images)
        found = Kernels(spec, weights, plan, CPU, graph=True).logits(images)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_plans_say_which_products_give_a_norm() -> None:
    spec = ModelSpec.from_name("vitl16")
    plan = get_stack("bf16").plan(spec, SM_90, Table())
    plan.check(spec)
    groups = {group.sites[0]: group for group in plan.groups}
    # Those that arrange tokens are left.
    alone = [name for name in groups if "norm" in name and "head" not in name]
    assert alone == ["block.0.norm1", "norm"] and groups["queries"].sites == ("queries", "block.20.norm1")
    assert groups["block.7.proj"] == Group(("block.7.proj", "block.7.add1", "block.7.norm2"), "cuda", "bf16")
    assert groups["block.7.fc2"] == Group(("block.7.fc2", "block.7.add2", "block.8.norm1"), "cuda", "bf16")
    assert groups["block.19.fc2"].sites == ("block.19.fc2", "block.19.add2")
    assert groups["block.22.fc2"].recipe == "fp16"


@pytest.mark.parametrize("arch", ["sm_120", "sm_80", "cpu"])
def test_elsewhere_a_norm_has_a_kernel_of_its_own(arch: str) -> None:
    spec, here = ModelSpec.from_name("vitb16"), target.CPU if arch == "cpu" else Target.named(arch)
    groups = get_stack("fp16").plan(spec, here, Table()).groups
    assert sum(group.sites[-1].endswith(("norm1", "norm2")) for group in groups) == 2 * spec.depth
    assert not any(group.implementation == "cuda" for group in groups)


def test_a_norm_is_given_only_by_what_adds_to_the_stream(small_spec: ModelSpec) -> None:
    groups: list[Group] = []
    for group in get_stack("torch_fp16").plan(small_spec, SM_90, Table()).groups:
        if group.sites[-1] == "block.1.norm2":
            groups[-1] = replace(groups[-1], sites=(*groups[-1].sites, "block.1.norm2"))
            groups.append(replace(group, sites=group.sites[:-1]))
        else:
            groups.append(group)
    weights = random_checkpoint(small_spec).weights
    with pytest.raises(InputError, match="plan: site"):
        Kernels(small_spec, weights, in_fp32(Plan(tuple(groups))), CPU, graph=True)
