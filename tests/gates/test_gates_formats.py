"""The 16-bit stacks' formats keep masks: plans for a Hopper GPU, by plain torch that rounds where they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fasteomt.checkpoint import resolve
from fasteomt.data.clip import draw_frame, tell
from fasteomt.engine.kernels import Kernels
from fasteomt.engine.tuning import Table
from fasteomt.gates.limits import load_limits
from fasteomt.model.reference import Eomt
from fasteomt.model.tiling import Tiling, crops_of_frame
from fasteomt.ops.target import Target
from fasteomt.plan import Plan
from fasteomt.stacks import STACKS, Stack

CPU = torch.device("cpu")
CHECKPOINT = resolve("heads-vitt16")
ALLOWED = 1 - load_limits().tiers[0].masks["min_cosine"]


@pytest.fixture(scope="module")
def crops() -> Tensor:
    """Of a frame in which a query's attention is nearly undecided: formats show there more than elsewhere."""
    frame = torch.from_numpy(draw_frame(tell(0), 4 / 24, 950, 720)[0]).permute(2, 0, 1)
    spec = CHECKPOINT.spec
    tiling = Tiling.of(frame.shape[1], frame.shape[2], spec.crop_size)
    return crops_of_frame(frame, tiling, spec.mean, spec.std)


@pytest.fixture(scope="module")
def expected(crops: Tensor) -> Tensor:
    model = Eomt(CHECKPOINT.spec)
    model.load_state_dict({name: weight.float() for name, weight in CHECKPOINT.weights.items()})
    with torch.inference_mode():
        return model.eval()(crops)[0].double().flatten()


def lost(stack: Stack, crops: Tensor, expected: Tensor) -> float:
    """1 - cosine of the frame's mask logits."""
    plan = stack.plan(CHECKPOINT.spec, Target.named("sm_90"), Table())
    plain = Plan(tuple(replace(group, implementation="reference") for group in plan.groups))
    kernels = Kernels(CHECKPOINT.spec, CHECKPOINT.weights, plain, CPU, graph=False)
    with torch.inference_mode():
        found = kernels.logits(crops)[0].double().flatten()
    return 1 - float(torch.nn.functional.cosine_similarity(found, expected, dim=0))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_shipped_stacks_keep_far_within_the_limit(name: str, crops: Tensor, expected: Tensor) -> None:
    assert 0 < lost(STACKS[name], crops, expected) < 0.2 * ALLOWED


def test_queries_and_keys_in_bf16_do_not(crops: Tensor, expected: Tensor) -> None:
    assert lost(replace(STACKS["bf16"], attention=None), crops, expected) > ALLOWED
