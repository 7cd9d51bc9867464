"""Norms folded into the products after them: the network's results stay, and plans say where it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_kernels import GEOMETRIES, SMALL, awake

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine.kernels import Kernels
from fasteomt.engine.packing import Packing
from fasteomt.engine.tuning import Table
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.ops.target import Target
from fasteomt.plan import Group, Plan, sites
from fasteomt.stacks import get_stack

CPU, SM_90 = torch.device("cpu"), Target.named("sm_90")
HEADS = {"embed_dim": 128, "num_heads": 2, "ffn_hidden": 256}  # heads of 64: all kernels can have them


def folded(spec: ModelSpec) -> Plan:
    return get_stack("fp16+folded").plan(spec, SM_90, Table())


def in_fp32(plan: Plan) -> Plan:
    """The same groups, as plain torch in fp32."""
    return Plan(tuple(replace(group, implementation="reference", recipe="fp32") for group in plan.groups))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_results_stay(name: str) -> None:
    model, crops, changes = GEOMETRIES[name]
    spec = ModelSpec.from_name(model, **SMALL | changes | HEADS)
    plan = in_fp32(folded(spec))
    assert any("norm2" in group.sites[0] and len(group.sites) > 1 for group in plan.groups)
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


def test_plans_fold_where_products_can() -> None:
    spec = ModelSpec.from_name("vitl16")
    plan = folded(spec)
    plan.check(spec)
    alone = [
        group.sites[-1] for group in plan.groups if group.sites[-1].rpartition(".")[2].startswith("norm")
    ]
    # Where tokens are arranged.
    assert [name for name in alone if "head" not in name] == ["block.0.norm1", "block.20.norm1", "norm"]
    groups = {group.sites[0]: group for group in plan.groups}
    assert groups["block.7.norm1"].sites == ("block.7.norm1", "block.7.qkv", "block.7.rope")
    assert groups["block.7.norm2"].sites == ("block.7.norm2", "block.7.fc1", "block.7.gelu")
    for name in ("block.7.norm1", "block.7.norm2", "block.7.proj", "block.7.fc2"):
        assert groups[name].implementation == "cuda"
    # What nobody hands on to is as it was.
    assert (
        groups["block.19.fc2"].implementation == "fused" and groups["block.0.qkv"].implementation == "fused"
    )


@pytest.mark.parametrize(("model", "arch"), [("vitb16", "sm_120"), ("vitb16", "sm_80"), ("vits16", "sm_90")])
def test_what_cannot_fold_says_so(model: str, arch: str) -> None:
    changes = {"embed_dim": 96, "num_heads": 3, "ffn_hidden": 384} if model == "vits16" else {}
    spec = ModelSpec.from_name(model, **changes)
    get_stack("fp16").plan(spec, Target.named(arch), Table())
    with pytest.raises(UnsupportedError, match=r"fp16\+folded.*leave out '\+folded'"):
        get_stack("fp16+folded").plan(spec, Target.named(arch), Table())


def test_on_a_cpu_nothing_is_fused() -> None:
    spec = ModelSpec.from_name("vitb16")
    plain, varied = (get_stack(name).plan(spec, target.CPU, Table()) for name in ("fp16", "fp16+folded"))
    assert plain == varied


def test_a_norm_is_folded_only_after_what_adds_to_the_stream(small_spec: ModelSpec) -> None:
    plan = get_stack("torch_fp16").plan(small_spec, SM_90, Table())
    groups: list[Group] = []
    for group in plan.groups:
        if group.sites[-1] == "block.1.norm2":
            groups.append(replace(group, sites=group.sites[:-1]))
        elif group.sites[0] == "block.1.fc1":
            groups.append(replace(group, sites=("block.1.norm2", *group.sites)))
        else:
            groups.append(group)
    with pytest.raises(InputError, match="plan: "):
        Kernels(
            small_spec, random_checkpoint(small_spec).weights, in_fp32(Plan(tuple(groups))), CPU, graph=True
        )


def test_stacks_whose_products_do_not_add_cannot_fold() -> None:
    with pytest.raises(UnsupportedError, match=r"torch_fp16\+folded.*leave out '\+folded'"):
        get_stack("torch_fp16+folded").plan(ModelSpec.from_name("vitb16"), SM_90, Table())


def test_weights_are_folded_in_fp32_whatever_their_format_is() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL | HEADS)
    weights = {name: one.bfloat16() for name, one in awake(random_checkpoint(spec).weights).items()}
    by_name = {site.name: site for site in sites(spec)}
    fc1, norm = by_name["block.1.fc1"], by_name["block.1.norm2"]
    dense = Packing(spec, weights, CPU).dense([fc1], torch.float16, torch.float32, norm)
    weight, gain, offset, bias = (
        weights[f"{module.upstream}.{part}"].float()
        for module, part in ((fc1, "weight"), (norm, "weight"), (norm, "bias"), (fc1, "bias"))
    )
    assert dense.bias is not None and dense.sums is not None
    assert torch.equal(dense.weight, (weight * gain).half())
    assert torch.allclose(dense.bias, bias + weight @ offset)
    assert torch.allclose(dense.sums, dense.weight.float().sum(dim=1), atol=1e-5)
