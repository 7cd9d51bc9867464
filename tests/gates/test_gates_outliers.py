"""Outlier injection: the same function, larger activations, and only where they belong."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from fasteomt.checkpoint import random_checkpoint
from fasteomt.errors import InputError
from fasteomt.gates.outliers import inject, injected_channels
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec

CROPS = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def variants(spec: ModelSpec) -> dict[str, ModelSpec]:
    return {
        "mlp": spec,
        "swiglu": dataclasses.replace(spec, ffn="swiglu"),
        "no qkv bias": dataclasses.replace(spec, qkv_bias=False),
    }


def model(spec: ModelSpec, weights: dict[str, Tensor]) -> Eomt:
    out = Eomt(spec)
    out.load_state_dict(weights)
    return out.requires_grad_(False).eval()


def channel_maxima(spec: ModelSpec, weights: dict[str, Tensor]) -> dict[tuple[int, str], Tensor]:
    """(block, place) -> (channels,) largest magnitude of norm1's output, norm2's output and V."""
    net, found = model(spec, weights), {}
    for index, block in enumerate(net.backbone.blocks):
        for place, module in (("norm1", block.norm1), ("norm2", block.norm2), ("v", block.attn.qkv)):

            def keep(_: object, __: object, out: Tensor, key: tuple[int, str] = (index, place)) -> None:
                out = out[..., -spec.embed_dim :]  # V is the last third of qkv
                found[key] = out.abs().amax(dim=(0, 1))

            module.register_forward_hook(keep)
    net(CROPS)
    return found


@pytest.mark.parametrize("kind", ["mlp", "swiglu", "no qkv bias"])
@pytest.mark.parametrize(("factor", "tolerance"), [(64.0, 1e-6), (10.0, 1e-5), (200.0, 1e-5)])
def test_function_stays_and_maxima_rise(
    small_spec: ModelSpec, kind: str, factor: float, tolerance: float
) -> None:
    spec = variants(small_spec)[kind]
    weights = random_checkpoint(spec).weights
    injected = inject(spec, weights, factor, channels=3, seed=5)
    for expected, found in zip(model(spec, weights)(CROPS), model(spec, injected)(CROPS), strict=True):
        assert (found - expected).norm() / expected.norm() < tolerance

    before, after = channel_maxima(spec, weights), channel_maxima(spec, injected)
    for block, places in enumerate(injected_channels(spec, 3, 5)):
        for place, chosen in places.items():
            rise = after[block, place] / before[block, place]
            expected = torch.ones(spec.embed_dim)
            expected[chosen] = factor
            torch.testing.assert_close(rise, expected, rtol=1e-3, atol=0)


def test_a_power_of_two_changes_no_bit(small_spec: ModelSpec) -> None:
    weights = random_checkpoint(small_spec).weights
    before, after = model(small_spec, weights), model(small_spec, inject(small_spec, weights))
    for expected, found in zip(before(CROPS), after(CROPS), strict=True):
        assert torch.equal(expected, found)


def test_what_is_changed(small_spec: ModelSpec) -> None:
    weights = random_checkpoint(small_spec).weights
    originals = {name: value.clone() for name, value in weights.items()}
    injected = inject(small_spec, weights, channels=2)
    assert all(torch.equal(weights[name], value) for name, value in originals.items())
    changed = {name for name in weights if not torch.equal(weights[name], injected[name])}
    kinds = {name.split(".", 3)[-1] for name in changed}
    assert kinds == {
        *("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"),
        *("attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "mlp.fc1.weight"),
    }
    assert len(changed) == 8 * small_spec.depth  # every block
    # Two channels of a Linear's 64 columns are 1/32 of its weights.
    different = injected["backbone.blocks.0.mlp.fc1.weight"] != weights["backbone.blocks.0.mlp.fc1.weight"]
    assert different.any(dim=0).sum() == 2
    assert different.all(dim=0).sum() == 2


def test_seed_decides(small_spec: ModelSpec) -> None:
    first, again, other = (injected_channels(small_spec, 4, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a[place], b[place]) for a, b in zip(first, again, strict=True) for place in a)
    assert any(not torch.equal(a[place], b[place]) for a, b in zip(first, other, strict=True) for place in a)
    assert all(len(set(places[place].tolist())) == 4 for places in first for place in places)


def test_16_bit_weights_are_widened_first(small_spec: ModelSpec) -> None:
    """60000 x 64 would be infinite in fp16."""
    weights = {name: value.half() for name, value in random_checkpoint(small_spec).weights.items()}
    weights["backbone.blocks.0.norm1.weight"].fill_(60000)
    injected = inject(small_spec, weights)["backbone.blocks.0.norm1.weight"]
    assert injected.dtype == torch.float32
    assert injected.max() == 60000 * 64


@pytest.mark.parametrize(("factor", "channels"), [(0, 1), (-2, 1), (float("inf"), 1), (2, 0), (2, 65)])
def test_refused(small_spec: ModelSpec, factor: float, channels: int) -> None:
    with pytest.raises(InputError, match="outliers: "):
        inject(small_spec, random_checkpoint(small_spec).weights, factor, channels)
