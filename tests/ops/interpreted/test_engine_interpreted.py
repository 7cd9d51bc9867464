"""A whole network of our Triton kernels in the interpreter: what each leaves is what the next one takes."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine.kernels import Kernels
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.target import Target
from fasteomt.stacks import get_stack

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"),
    pytest.mark.usefixtures("gpu_of_three_processors"),
]

VARIATIONS = {
    "as it ships": ("vitt16", 2, {}, {}),
    "sums in the norm, RoPE in attention": ("vitt16", 1, {}, {"add": "add_norm", "rope": "attention"}),
    "SwiGLU, RoPE by itself": ("vits16plus", 1, {"ffn_hidden": 96}, {"rope": "rope"}),
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_fused_kernels_together_are_the_reference(name: str) -> None:
    model, count, changes, variation = VARIATIONS[name]
    small = {
        "embed_dim": 128, "num_heads": 2, "ffn_hidden": 128, "depth": 2, "num_joint_blocks": 1,
        "num_queries": 7, "image_size": (64, 64),
    }  # fmt: skip
    spec = ModelSpec.from_name(model, **(small | changes))
    stack = replace(get_stack("fp16"), norm="add_norm", **variation)
    plan = stack.plan(spec, Target.named("sm_90"))
    assert {group.implementation for group in plan.groups} == {"reference", "fused"}
    weights = random_checkpoint(spec).weights
    crops = torch.randn(count, 3, 64, 64)
    kernels = Kernels(spec, weights, plan, torch.device("cpu"), graph=False)
    reference = Eomt(spec)
    reference.load_state_dict(weights)
    with torch.inference_mode():
        for found, expected in zip(kernels.logits(crops), reference(crops), strict=True):
            assert (found.float() - expected).norm() < 5e-3 * expected.norm()
