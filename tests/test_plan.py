"""Plans are values: every site once, in order, JSON both ways; the model really has those sites."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import Group, Plan, sites
from fasteomt.stacks import STACKS


@pytest.mark.parametrize("name", ["vitt16", "vits16plus", "vitl32"])
@pytest.mark.parametrize("stack", sorted(STACKS))
def test_shipped_stacks_plan_every_site_of_every_model(name: str, stack: str) -> None:
    spec = ModelSpec.from_name(name)
    plan = STACKS[stack].plan(spec)
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


def test_autocast_stacks_name_the_sites_that_drop_to_16_bits() -> None:
    plan = STACKS["bf16"].plan(ModelSpec.from_name("vitt16"))
    recipe = {name: group.recipe for group in plan.groups for name in group.sites}
    assert recipe["block.3.fc1"] == "bf16"
    assert recipe["head.up1.conv"] == "bf16"
    assert recipe["block.3.norm1"] == "fp32"
    assert recipe["rope"] == "fp32"


def test_plans_that_do_not_fit_are_refused_by_site(small_spec: ModelSpec) -> None:
    plan = STACKS["fp32"].plan(small_spec)
    with pytest.raises(InputError, match=r"site 'frame\.post'"):
        Plan(plan.groups[:-1]).check(small_spec)
    with pytest.raises(InputError, match="unknown site 'extra'"):
        Plan((*plan.groups, Group(("extra",), "reference", "fp32"))).check(small_spec)
    swapped = Plan((*plan.groups[:3], plan.groups[4], plan.groups[3], *plan.groups[5:]))
    with pytest.raises(InputError, match=r"'block\.0\.qkv' stands where"):
        swapped.check(small_spec)
    with pytest.raises(InputError, match=r"'block\.1\.norm1' stands where"):
        plan.check(replace(small_spec, depth=2))


@pytest.mark.parametrize("text", ["", "[]", '{"groups": [{"sites": ["a"]}]}', '{"groups": 3}'])
def test_json_that_is_no_plan(text: str) -> None:
    with pytest.raises(InputError, match="not a plan"):
        Plan.from_json(text)


def test_unknown_format_is_named() -> None:
    text = Plan((Group(("rope",), "reference", "int3"),)).to_json()
    with pytest.raises(InputError, match="site rope: unknown format 'int3'"):
        Plan.from_json(text)
