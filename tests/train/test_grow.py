"""A grown model does what the small one did, and every copy goes a way of its own from the first step on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fasteomt.checkpoint import random_checkpoint, resolve
from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.train import grow
from fasteomt.train.grow import copies_of_blocks, grown, shallow
from fasteomt.train.pretrain import initialise

SMALL = ModelSpec.from_name(
    "vitt16", image_size=(64, 64), embed_dim=32, num_heads=2, ffn_hidden=96, depth=3, num_joint_blocks=1,
    num_queries=5,
)  # fmt: skip
FOUR_TIMES = replace(SMALL, name="four", embed_dim=128, num_heads=8, ffn_hidden=320)


def model_of(spec: ModelSpec, weights: Mapping[str, Tensor]) -> Eomt:
    model = Eomt(spec).eval()
    model.load_state_dict(weights)
    return model


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def test_a_deeper_model_computes_nearly_the_same() -> None:
    torch.manual_seed(0)
    deep = ModelSpec.from_name("vitt16", image_size=(64, 64), depth=12, num_joint_blocks=3)
    spec = shallow(deep, 3)
    assert (spec.depth, spec.num_joint_blocks) == (4, 1)
    small = Eomt(spec).eval()
    initialise(small)
    large, stacked = (model_of(deep, grown(small.state_dict(), spec, deep)) for _ in range(2))
    crops = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        for block in stacked.backbone.blocks:
            block.ls1.gamma *= 3
            block.ls2.gamma *= 3
        before, after, plain = small(crops)[0], large(crops)[0], stacked(crops)[0]
        one = large.backbone.blocks[4].ls1.gamma.clone()
        large.backbone.blocks[4].ls1.gamma.zero_()
        without = large(crops)[0]
    assert error(after, before) < 0.25
    assert error(after, before) < 0.3 * error(plain, before)  # steps as large as before go astray
    assert torch.allclose(one * 3, small.backbone.blocks[1].ls1.gamma)
    assert error(without, after) > 1e-4


@pytest.mark.parametrize("ffn", ["mlp", "swiglu"])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_a_model_of_twice_or_more_times_the_width_computes_the_same(ffn: str, qkv_bias: bool) -> None:
    torch.manual_seed(0)
    small = replace(SMALL, ffn=ffn, qkv_bias=qkv_bias)
    weights = random_checkpoint(small).weights
    crops = torch.randn(2, 3, 64, 64)
    wanted = model_of(small, weights)(crops)
    for seed, wide in enumerate(
        (
            replace(FOUR_TIMES, ffn=ffn, qkv_bias=qkv_bias),  # the hidden width is no multiple
            replace(small, embed_dim=64, num_heads=4),  # hidden units stay
            replace(small, ffn_hidden=192),  # only they are copied
        )
    ):
        found = model_of(wide, grown(weights, small, wide, seed))(crops)
        for one, other in zip(found, wanted, strict=True):
            assert error(one, other) < 1e-5


# Of each weight, the dimension of the outputs; what they are copies of.
WRITERS = {
    "backbone.patch_embed.proj.weight": 0,
    "backbone.storage_tokens": 2,
    "queries.weight": 1,
    "backbone.blocks.0.attn.proj.weight": 0,
    "backbone.blocks.2.mlp.fc1.weight": 0,
    "backbone.blocks.2.mlp.fc2.weight": 0,
    "mask_head.0.weight": 0,
    "mask_head.2.weight": 0,
    "upscale.0.conv1.weight": 1,
    "upscale.1.conv1.weight": 1,
    "upscale.1.conv2.weight": 0,
}


@pytest.mark.parametrize("spread", [0.0, grow.SPREAD])
def test_copies_get_gradients_of_their_own(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grow, "SPREAD", spread)
    torch.manual_seed(0)
    model = model_of(FOUR_TIMES, grown(random_checkpoint(SMALL).weights, SMALL, FOUR_TIMES))
    masks, classes = model(torch.randn(2, 3, 64, 64))
    (masks.square().mean() + classes[..., 0].mean()).backward()
    narrow = Eomt(SMALL)
    distances = []
    for name, dim in WRITERS.items():
        first, second, *_ = model.get_parameter(name).grad.split(narrow.get_parameter(name).shape[dim], dim)
        distances.append(error(first, second))
    for part in model.backbone.blocks[1].attn.qkv.weight.grad.chunk(3):
        first, second, *_ = part.split(SMALL.embed_dim)
        distances.append(error(first, second))
    if spread:
        assert min(distances) > 0.01
    else:
        assert max(distances) < 1e-3


def test_the_shipped_model_grows_to_vitb_as_it_is() -> None:
    shipped = resolve("heads-vitt16")
    weights = {name: weight.float() for name, weight in shipped.weights.items()}
    changes = {"class_ids": shipped.spec.class_ids, "class_names": shipped.spec.class_names}
    large = ModelSpec.from_name("vitb16", **changes)
    torch.manual_seed(0)
    crops = torch.rand(1, 3, 128, 128) * 4 - 2
    with torch.inference_mode():
        wanted = model_of(shipped.spec, weights)(crops)
        found = model_of(large, grown(weights, shipped.spec, large))(crops)
    for one, other in zip(found, wanted, strict=True):
        assert error(one, other) < 1e-4


def test_blocks_that_do_not_divide_are_repeated_as_evenly_as_can_be() -> None:
    counts = copies_of_blocks(ModelSpec.from_name("vitt16"), ModelSpec.from_name("vitl16"))
    assert counts == [2, 2, 2, 2, 3, 2, 2, 2, 3, 1, 1, 2]
    small = random_checkpoint(SMALL).weights
    deep = replace(SMALL, depth=6, num_joint_blocks=2)
    weights = grown(small, SMALL, deep)
    gammas = [weights[f"backbone.blocks.{i}.ls1.gamma"] for i in range(6)]
    for i, copies in enumerate([gammas[:2], gammas[2:4], gammas[4:]]):
        assert torch.allclose(sum(copies), small[f"backbone.blocks.{i}.ls1.gamma"])
    model_of(deep, weights)


def test_the_seed_decides_the_shares() -> None:
    small = random_checkpoint(SMALL).weights
    one, same, other = (grown(small, SMALL, FOUR_TIMES, seed) for seed in (0, 0, 1))
    name = "backbone.blocks.0.mlp.fc1.weight"
    assert torch.equal(one[name], same[name])
    assert not torch.equal(one[name], other[name])
    assert torch.allclose(one[name][:96].unflatten(1, (4, -1)).sum(1), small[name], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 32}, "patch_size is 16 and 32"),
        ({"ffn": "swiglu"}, "ffn is 'mlp' and 'swiglu'"),
        ({"num_queries": 7}, "num_queries is 5 and 7"),
        ({"class_names": ("background", "cat")}, "class_names"),
        ({"embed_dim": 64}, "heads have 16 and 32 channels"),
        ({"embed_dim": 16, "num_heads": 1}, "from 32 channels to 16"),
        ({"ffn_hidden": 95}, "from 96 hidden units to 95"),
        ({"depth": 2}, "from 2 blocks before the joint ones to 1"),
        ({"depth": 6, "num_joint_blocks": 6}, "from 2 blocks before the joint ones to 0"),
    ],
)
def test_models_that_can_not_be_grown(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        grown({}, SMALL, replace(SMALL, **change))
    assert "\n" not in str(raised.value)


def test_blocks_before_the_joint_ones_grow_out_of_some() -> None:
    joint = replace(SMALL, depth=1)
    with pytest.raises(InputError, match="from 0 blocks before the joint ones"):
        grown({}, joint, SMALL)


@pytest.mark.parametrize("times", [0, 2, 5])
def test_depth_that_does_not_divide(times: int) -> None:
    with pytest.raises(InputError, match="divisor"):
        shallow(ModelSpec.from_name("vitt16"), times)
