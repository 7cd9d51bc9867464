"""The reference against the layers it stands for; and how networks come to use the op."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine.asked import asked
from fasteomt.engine.kernels import Kernels
from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt, ScaleBlock
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.depthwise_masks import Problem, in_range, reference
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import CPU, Target
from fasteomt.plan import Group, Plan
from fasteomt.stacks import STACKS, get_stack

ENDS = ("head.up2.depthwise", "head.up2.norm", "head.einsum")


@pytest.mark.parametrize("grid", [Grid(1, 3, 0), Grid(3, 3, 1), Grid(2, 2, 2)])
@torch.no_grad()
def test_equals_a_scale_blocks_second_half_and_an_einsum(grid: Grid) -> None:
    torch.manual_seed(0)
    dim, count = 12, 5
    block = ScaleBlock(dim)
    block.norm.weight.normal_()
    block.norm.bias.normal_()
    images = torch.randn(grid.crops, dim, grid.resolution, grid.resolution)
    queries = torch.randn(grid.crops * count, dim)
    rows = images.permute(0, 2, 3, 1).flatten(0, 2)[grid.raster()]
    taps, eps = in_range(block.conv2.weight.permute(2, 3, 0, 1).reshape(9, dim), block.norm.eps)
    folded, sums = torch.empty(grid.crops, count + 1, dim), torch.empty(2, grid.crops * count)
    reference.fold(queries, block.norm.weight, block.norm.bias, folded, sums)
    out = torch.empty(grid.crops, count, grid.resolution, grid.resolution)
    reference.run(rows, taps, eps, folded, sums, out, grid)
    features = block.norm(block.conv2(images).permute(0, 2, 3, 1))
    expected = torch.einsum("bqc,byxc->bqyx", queries.unflatten(0, (grid.crops, count)), features)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(folded[:, -1], torch.ones(grid.crops, dim))
    torch.testing.assert_close(sums[0], folded[:, :-1].sum(2).flatten())


@pytest.mark.parametrize("size", [1e-6, 0.3, 1.0, 4.0, 1e6])
def test_taps_in_range_make_no_value_larger_and_change_no_norm(size: float) -> None:
    torch.manual_seed(0)
    taps = size * torch.randn(9, 32)
    scaled, eps = in_range(taps, 1e-6)
    assert 0.5 <= float(scaled.abs().sum(0).amax()) <= 1
    scale = float(scaled[0, 0] / taps[0, 0])
    assert torch.equal(scaled, taps * scale)  # nothing is rounded
    assert eps == pytest.approx(1e-6 * scale**2)


@pytest.mark.parametrize("taps", [torch.zeros(9, 4), torch.full((9, 4), torch.nan)])
def test_taps_without_a_size_stay_as_they_are(taps: Tensor) -> None:
    scaled, eps = in_range(taps, 1e-6)
    assert torch.equal(scaled.nan_to_num(7.0), taps.nan_to_num(7.0)) and eps == 1e-6


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp16+head16"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_gpus_end_in_one_group(name: str, blocks: int) -> None:
    spec = ModelSpec.from_name("vitl16", num_upscale_blocks=blocks)
    plan = get_stack(name).plan(spec, Target.named("sm_90"))
    plan.check(spec)
    last = next(group for group in plan.groups if "head.einsum" in group.sites)
    up = f"head.up{blocks}"
    assert last.sites == (f"{up}.depthwise", f"{up}.norm", "head.einsum")
    assert last.implementation == "fused"


@pytest.mark.parametrize(("name", "arch"), [("bf16", "cpu"), ("r5_v1", "sm_90"), ("torch_fp16", "sm_90")])
def test_others_end_in_two(name: str, arch: str) -> None:
    plan = STACKS[name].plan(ModelSpec.from_name("vitl16"), Target.named(arch))
    assert ("head.einsum",) in [group.sites for group in plan.groups]


def test_what_a_gpu_is_asked_for() -> None:
    spec = ModelSpec.from_name("vitb16")
    plan = get_stack("fp16").plan(spec, Target.named("sm_90"))
    found = [one.problem for one in asked(spec, plan, 3) if one.op == "depthwise_masks"]
    grid = Grid(3, 32, 2)
    assert found == [Problem(grid, spec.num_queries, 768, torch.float16, torch.float32)]


def joined(plan: Plan, *names: str) -> Plan:
    """The plan with one group of these sites, which are groups' own."""
    groups = []
    for group in plan.groups:
        if group.sites[-1] == names[-1]:
            groups.append(Group(names, "reference", group.recipe))
        elif group.sites[0] not in names:
            groups.append(group)
    return Plan(tuple(groups))


@pytest.mark.parametrize("crops", [1, 3])
def test_a_network_with_it_is_the_reference(small_spec: ModelSpec, crops: int) -> None:
    spec = replace(small_spec, num_queries=7)
    weights = random_checkpoint(spec).weights
    torch.manual_seed(1)
    for name, weight in weights.items():
        if name.startswith("upscale.") and weight.dim() == 1:
            weight.add_(0.3 * torch.randn_like(weight))
    plan = joined(STACKS["bf16"].plan(spec, CPU), *ENDS)
    plan = Plan(tuple(replace(group, recipe="fp32") for group in plan.groups))
    plan.check(spec)
    kernels = Kernels(spec, weights, plan, torch.device("cpu"), graph=True)
    model = Eomt(spec)
    model.load_state_dict(weights)
    images = torch.randn(crops, 3, 64, 64)
    with torch.inference_mode():
        for found, expected in zip(kernels.logits(images), model(images), strict=True):
            assert (found - expected).norm() < 1e-5 * expected.norm()


def test_queries_are_folded_beside_the_upscaling_and_used_after_both(small_spec: ModelSpec) -> None:
    plan = joined(STACKS["bf16"].plan(small_spec, CPU), *ENDS)
    weights = random_checkpoint(small_spec).weights
    program = Kernels(small_spec, weights, plan, torch.device("cpu"), graph=True).program(2, 64)
    aside = [launch.group.sites for launch in program._side]
    assert aside == [("head.mask.0",), ("head.mask.2",), ("head.mask.4",), ENDS, ("head.class",)]
    assert [launch.group.sites for launch in program._after] == [ENDS]


def test_another_product_is_no_mask_logit(small_spec: ModelSpec) -> None:
    names = ("head.up1.depthwise", "head.up1.norm", "head.up2.conv")
    groups = [group for group in STACKS["bf16"].plan(small_spec, CPU).groups if group.sites[0] != names[2]]
    plan = Plan(tuple(replace(one, sites=names) if one.sites[0] == names[0] else one for one in groups))
    weights = random_checkpoint(small_spec).weights
    with pytest.raises(InputError, match=r"no op computes depthwise_conv \+ layer_norm \+ gemm at once"):
        Kernels(small_spec, weights, plan, torch.device("cpu"), graph=True)
