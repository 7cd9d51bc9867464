"""Costs against counts made otherwise: by torch's own counter, and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fasteomt.bench.costs import SiteCost, site_costs
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.plan import Group, Plan, plan_by_op, sites
from fasteomt.stacks import STACKS


def fp32(spec: ModelSpec) -> Plan:
    return STACKS["fp32"].plan(spec, target.CPU)


def by_site(costs: tuple[SiteCost, ...]) -> dict[str, SiteCost]:
    return {cost.site: cost for cost in costs}


@pytest.mark.parametrize("name", ["vitt16", "vits16plus", "vitb32", "vitl16"])
@pytest.mark.parametrize("crops", [1, 3])
def test_operations_equal_those_that_torch_counts(name: str, crops: int) -> None:
    """In the model; its counter knows matrix products, convolutions (grouped too) and attention."""
    spec = ModelSpec.from_name(name, class_ids=tuple(range(7)), class_names=tuple("abcdefg"))
    with torch.device("meta"):
        model, pixels = Eomt(spec), torch.empty(crops, 3, spec.crop_size, spec.crop_size)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(pixels)
    costs = site_costs(spec, fp32(spec), crops)
    assert sum(c.flops for c in costs if not c.site.startswith("frame.")) == counter.get_total_flops()


def test_every_site_costs_something() -> None:
    for name in ("vitt16", "vits16plus", "vit7b16"):
        spec = ModelSpec.from_name(name)
        costs = site_costs(spec, fp32(spec), 2)
        assert [c.site for c in costs] == [s.name for s in sites(spec)]
        assert all(c.bytes > 0 for c in costs)
        arithmetic = {"gemm", "conv", "attention", "depthwise_conv", "upsample+sigmoid+average+argmax"}
        assert all((c.flops > 0) == (c.op in arithmetic) for c in costs)


def test_bytes_by_hand() -> None:
    """ViT-B/16, two crops of 512x512, fp32: 1024 patches, 1029 tokens, 1129 in the last three blocks."""
    spec = ModelSpec.from_name("vitb16")
    costs = by_site(site_costs(spec, fp32(spec), 2))
    expected = {
        "frame.prep": 2 * 3 * 512 * 512 * (1 + 4),
        "patch_embed": 4 * (2 * 3 * 512 * 512 + 768 * 768 + 768 + 2 * 1024 * 768),
        "rope": 4 * (16 + 2 * 1024 * 64),
        "block.0.norm1": 4 * (2 * 2058 * 768 + 2 * 768),
        "block.0.qkv": 4 * (2058 * 768 + 768 * 2304 + 2304 + 2058 * 2304),
        "block.0.rope": 4 * (2 * 2 * 2 * 1024 * 768 + 2 * 1024 * 64),
        "block.0.attention": 4 * (3 * 2058 * 768 + 2058 * 768),
        "block.0.proj": 4 * (2058 * 768 + 768 * 768 + 768 + 2058 * 768),
        "block.0.add1": 4 * (3 * 2058 * 768 + 768),
        "block.11.fc1": 4 * (2258 * 768 + 768 * 3072 + 3072 + 2258 * 3072),
        "block.11.gelu": 4 * 2 * 2258 * 3072,
        "block.11.fc2": 4 * (2258 * 3072 + 3072 * 768 + 768 + 2258 * 768),
        "queries": 4 * (2058 * 768 + 100 * 768 + 2258 * 768),
        "norm": 4 * (2 * 2258 * 768 + 2 * 768),
        "head.mask.0": 4 * (200 * 768 + 768 * 768 + 768 + 200 * 768),
        "head.up1.conv": 4 * (2048 * 768 + 768 * 4 * 768 + 768 + 4 * 2048 * 768),
        "head.up2.depthwise": 4 * (2 * 16 * 2048 * 768 + 9 * 768),
        "head.up2.norm": 4 * (2 * 16 * 2048 * 768 + 2 * 768),
        "head.einsum": 4 * (200 * 768 + 2 * 16384 * 768 + 2 * 100 * 16384),
        "head.class": 4 * (200 * 768 + 768 * 3 + 3 + 200 * 3),
        "frame.post": 4 * (2 * 100 * 16384 + 200 * 3) + 512 * 1024,
    }
    assert {site: costs[site].bytes for site in expected} == expected


def test_swiglu_by_hand() -> None:
    spec = ModelSpec.from_name("vits16plus")
    costs = by_site(site_costs(spec, fp32(spec), 1))
    assert costs["block.0.silu"].bytes == 4 * 3 * 1029 * 1536
    assert costs["block.0.w2"].flops == 2 * 1029 * 384 * 1536
    assert costs["block.0.w3"].bytes == 4 * (1029 * 1536 + 1536 * 384 + 384 + 1029 * 384)


def test_the_residual_stream_is_fp32_in_every_plan() -> None:
    spec = ModelSpec.from_name("vitb16")
    stream, weights = 2058 * 768, 2 * 768
    for recipe in ("bf16", "fp16"):
        costs = by_site(site_costs(spec, STACKS[recipe].plan(spec, target.Target.named("sm_90")), 2))
        for site in ("block.0.norm1", "block.3.norm2"):
            assert costs[site].bytes == 4 * stream + 2 * (stream + weights), site
        assert costs["block.3.proj"].bytes == 2 * (2 * stream + 768 * 768 + 768)
        assert costs["block.3.add2"].bytes == 2 * 4 * stream + 2 * (stream + 768)


def test_scales_of_blocks_count() -> None:
    spec = ModelSpec.from_name("vitb16")
    values = 2 * 2058 * 768 * 2
    for recipe, width in (("fp8_e4m3", 1), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16), ("mxfp4", 17 / 32)):
        plan = plan_by_op(spec, "torch", lambda op, r=recipe: r if op == "attention" else "bf16")
        assert by_site(site_costs(spec, plan, 2))["block.0.attention"].bytes == values * width


def test_frames_share_weights_and_crops_know_their_frame() -> None:
    spec = ModelSpec.from_name("vitb16")
    once, twice = (by_site(site_costs(spec, fp32(spec), 2, frames=n)) for n in (1, 2))
    for site, cost in once.items():
        assert twice[site].flops == 2 * cost.flops
    weights = 4 * (768 * 3072 + 3072)
    fc1 = "block.0.fc1"
    assert twice[fc1].bytes == 2 * once[fc1].bytes - weights
    large = by_site(site_costs(spec, fp32(spec), 2, frame=(1440, 1900)))
    assert large["frame.prep"].bytes == 3 * 1440 * 1900 + 4 * 2 * 3 * 512 * 512
    assert large["frame.post"].bytes - once["frame.post"].bytes == 1440 * 1900 - 512 * 1024
    assert large[fc1] == once[fc1]


def test_wide_ids_make_wide_masks() -> None:
    spec = ModelSpec.from_name("vitb16")
    wide = replace(spec, class_ids=(0, 300))
    difference = [
        w.bytes - n.bytes
        for w, n in zip(site_costs(wide, fp32(wide), 2), site_costs(spec, fp32(spec), 2), strict=True)
    ]
    assert difference[-1] == 512 * 1024 and not any(difference[:-1])


def test_what_does_not_fit_is_refused(small_spec: ModelSpec) -> None:
    plan = fp32(small_spec)
    with pytest.raises(InputError, match="1900x1440 pixels makes 2 crops, not 3"):
        site_costs(small_spec, plan, 3, frame=(1440, 1900))
    with pytest.raises(InputError, match="0 crops"):
        site_costs(small_spec, plan, 0)
    with pytest.raises(InputError, match="plan"):
        site_costs(ModelSpec.from_name("vitb16"), plan, 2)
    odd = Plan(tuple(Group(g.sites, g.implementation, "int3") for g in plan.groups))
    with pytest.raises(UnsupportedError, match=r"site frame\.prep: .*'int3'"):
        site_costs(small_spec, odd, 1)
