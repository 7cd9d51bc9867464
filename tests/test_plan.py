"""Plans are values: every site once, in order, JSON both ways; the model really has those sites."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from fasteomt.engine.tuning import Table
from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.plan import Group, Plan, sites
from fasteomt.stacks import STACKS, get_stack


@pytest.mark.parametrize("name", ["vitt16", "vits16plus", "vitl32"])
@pytest.mark.parametrize("stack", sorted(STACKS))
@pytest.mark.parametrize("arch", ["cpu", "sm_90", "sm_120"])
def test_shipped_stacks_plan_every_site_of_every_model(name: str, stack: str, arch: str) -> None:
    spec = ModelSpec.from_name(name)
    plan = STACKS[stack].plan(spec, target.Target.named(arch), Table())
    plan.check(spec)
    assert Plan.from_json(plan.to_json()) == plan
    assert len(plan.hash) == 12


def test_all_weights_belong_to_a_site() -> None:
    """A site list that misses a module would leave its arithmetic out of every plan."""
    for name in ("vitt16", "vits16plus"):
        spec = ModelSpec.from_name(name)
        with torch.device("meta"):
            weights = Eomt(spec).state_dict()
        modules = {site.upstream for site in sites(spec)}
        tokens = {"backbone.cls_token", "backbone.storage_tokens", "backbone.mask_token"}
        for weight in weights.keys() - tokens:
            assert weight.rsplit(".", 1)[0] in modules, weight


def test_plans_say_what_is_fused_and_in_which_format() -> None:
    spec = ModelSpec.from_name("vitt16")
    sm_90 = target.Target.named("sm_90")
    plan = replace(STACKS["bf16"], add="add_norm").plan(spec, sm_90, Table())
    groups = {group.sites[0]: group for group in plan.groups}
    assert groups["block.3.qkv"] == Group(("block.3.qkv", "block.3.rope"), "fused", "bf16")
    assert groups["block.3.fc1"].sites == ("block.3.fc1", "block.3.gelu")
    assert groups["block.3.add2"].sites == ("block.3.add2", "block.4.norm1")
    assert groups["block.8.add2"].sites == ("block.8.add2", "queries", "block.9.norm1")
    assert groups["block.11.add2"].sites == ("block.11.add2", "norm")
    assert groups["rope"].recipe == groups["frame.post"].recipe == "fp32"
    in_epilogues = {group.sites for group in STACKS["bf16"].plan(spec, sm_90, Table()).groups}
    assert {("block.3.fc2", "block.3.add2", "block.4.norm1"), ("queries", "block.9.norm1")} <= in_epilogues
    alone = replace(STACKS["bf16"], norm="add_norm").plan(spec, sm_90, Table())
    assert {("block.3.fc2", "block.3.add2"), ("block.4.norm1",)} <= {group.sites for group in alone.groups}
    on_cpu = {group.implementation for group in STACKS["bf16"].plan(spec, target.CPU).groups}
    assert on_cpu == {"library", "reference"}


def test_late_formats_begin_with_the_joint_blocks() -> None:
    """From the first joint block's norm on, whose group takes the queries in too, to the head's end."""
    spec = ModelSpec.from_name("vitb16")
    for arch in ("cpu", "sm_90"):
        plan = get_stack("bf16+head16").plan(spec, target.Target.named(arch), Table())
        recipes = {name: group.recipe for group in plan.groups for name in group.sites}
        assert [recipes[f"block.{i}.norm1"] for i in (0, 8, 9, 11)] == ["bf16", "bf16", "fp16", "fp16"]
        assert recipes["block.8.fc2"] == "bf16" and recipes["queries"] == recipes["norm"] == "fp16"
        head = {recipe for name, recipe in recipes.items() if name.startswith("head.")}
        assert head == {recipes["frame.post"]} == {"fp16"}
        pure = get_stack("torch_bf16").plan(spec, target.Target.named(arch), Table())
        assert {group.recipe for group in pure.groups} == {"bf16", "fp32"}


def test_variations_of_a_stack_plan_every_site_too() -> None:
    sm_90 = target.Target.named("sm_90")
    for name in ("vitb16", "vits16plus"):
        spec = ModelSpec.from_name(name)
        for rope in ("rope", "linear", "attention"):
            for add in ("add_norm", "linear"):
                plan = replace(STACKS["bf16"], rope=rope, add=add).plan(spec, sm_90, Table())
                plan.check(spec)
                assert Plan.from_json(plan.to_json()) == plan


def test_plans_that_do_not_fit_are_refused_by_site(small_spec: ModelSpec) -> None:
    plan = STACKS["fp32"].plan(small_spec, target.CPU)
    with pytest.raises(InputError, match=r"site 'frame\.post'"):
        Plan(plan.groups[:-1]).check(small_spec)
    with pytest.raises(InputError, match="unknown site 'extra'"):
        Plan((*plan.groups, Group(("extra",), "reference", "fp32"))).check(small_spec)
    swapped = Plan((*plan.groups[:4], plan.groups[5], plan.groups[4], *plan.groups[6:]))
    with pytest.raises(InputError, match=r"'block\.0\.qkv' stands where"):
        swapped.check(small_spec)
    with pytest.raises(InputError, match=r"'block\.1\.norm1' stands where"):
        plan.check(replace(small_spec, depth=2))


GROUP = {"sites": ["rope"], "implementation": "reference", "recipe": "fp32", "direction": "fprop"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        '{"groups": 3}',
        '{"groups": [], "more": 1}',
        "[" * 100_000,
        '{"groups": ' + "[" * 100_000,
    ],
)
def test_json_that_is_no_plan(text: str) -> None:
    with pytest.raises(InputError, match="not a plan"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sites": []}, "must be a list of names"),
        ({"sites": "rope"}, "must be a list of names"),
        ({"sites": [3]}, "must be a list of names"),
        ({"implementation": 3}, "the implementation must be a name"),
        ({"recipe": "int3"}, "unknown format 'int3'"),
        ({"recipe": ["fp32"]}, "unknown format"),
        ({"direction": "dgrad"}, "direction must be fprop"),
        ({"more": 1}, "and no more"),
        ({"sites": ["a\nb"], "recipe": "x"}, "unknown format"),
    ],
)
def test_groups_that_are_none(change: dict, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        Plan.from_json(json.dumps({"groups": [GROUP | change]}))
    assert "\n" not in str(error.value)


def test_unknown_format_is_named() -> None:
    text = Plan((Group(("rope",), "reference", "int3"),)).to_json()
    with pytest.raises(InputError, match="site 'rope': unknown format 'int3'"):
        Plan.from_json(text)


def test_stacks_have_names_of_the_ladder_and_variations() -> None:
    assert get_stack("r11") is STACKS["bf16"]
    assert get_stack("r12+head16").name == "fp16+head16"
    spec = ModelSpec.from_name("vitt16")
    plain, varied = (get_stack(name).plan(spec, target.CPU) for name in ("fp16", "r12+head16"))
    assert plain.groups[:-1] == varied.groups[:-1]
    assert [plan.groups[-1].recipe for plan in (plain, varied)] == ["fp32", "fp16"]
    for name, said in (
        ("fp17", "choose one of fp32, bf16"),
        ("fp16+head17", "fp16 has variations head16"),
        ("fp32+head16", "fp32 has no variations"),
        ("fp16+", "fp16 has variations head16"),
    ):
        with pytest.raises(InputError, match=said):
            get_stack(name)
