"""Pre-training: rotary positions of windows, the optimizer's shares, and steps replayed as a graph."""

from __future__ import annotations

import math

import pytest
import torch

from fasteomt.data.fresh import CLASSES, fresh_head, largest_side
from fasteomt.model.reference import Eomt, rope_tables
from fasteomt.model.spec import ModelSpec
from fasteomt.train.optimizer import Optimizer
from fasteomt.train.pretrain import Step, Windowed, rope_of_window
from fasteomt.train.resident import Resident

SIZE = (160, 120)


def test_rope_of_the_whole_crop_is_the_references() -> None:
    model = Eomt(ModelSpec.from_name("vitt16", image_size=(128, 128)))
    whole = rope_of_window(model, 8, random=False)
    for ours, theirs in zip(whole, rope_tables(model.backbone.rope_embed.periods, 8, 8), strict=True):
        torch.testing.assert_close(ours, theirs)
    part = rope_of_window(model, 4, random=False)[0].unflatten(0, (4, 4))
    torch.testing.assert_close(part, whole[0].unflatten(0, (8, 8))[2:6, 2:6])


def test_massive_registers_stay_massive() -> None:
    torch.manual_seed(0)
    spec = ModelSpec.from_name(
        "vitt16", image_size=(64, 64), class_names=("background", "head"), depth=3, num_joint_blocks=1
    )
    model = Windowed(spec, massive=500.0)
    data = Resident(4, largest_side(*SIZE), list(CLASSES), torch.device("cpu"))
    data.put([fresh_head(0, "train", SIZE, i) for i in range(4)])
    optimizer = Optimizer(model, torch.device("cpu"))
    optimizer.rate.fill_(1e-3)
    step = Step(model, model, optimizer, data, 2, 1.0)
    losses = [step().item() for _ in range(20)]
    assert all(math.isfinite(loss) for loss in losses)
    seen = []
    model.eomt.backbone.blocks[-1].register_forward_hook(lambda _, __, out: seen.append(out))
    step()
    registers = seen[0][:, spec.num_queries + 1 : spec.num_queries + spec.num_prefix_tokens]
    assert registers.abs().amax() > 450
    assert seen[0][:, spec.num_queries + spec.num_prefix_tokens :].abs().amax() < 50


def test_every_parameter_is_trained_by_one_optimizer() -> None:
    spec = ModelSpec.from_name("vitt16", image_size=(64, 64), class_names=("background", "head"))
    model = Windowed(spec)
    optimizer = Optimizer(model, torch.device("cpu"))
    groups = [*optimizer._muon.param_groups, *optimizer._adamw.param_groups]
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert sum(p.dim() == 2 for g in optimizer._muon.param_groups for p in g["params"]) == 4 * spec.depth


@pytest.mark.gpu
def test_replayed_steps_draw_anew_and_learn() -> None:
    device = torch.device("cuda")
    data = Resident(8, largest_side(*SIZE), list(CLASSES), device)
    data.put([fresh_head(0, "train", SIZE, i) for i in range(8)])
    spec = ModelSpec.from_name("vitt16", image_size=(128, 128), class_names=("background", "head"))
    torch.manual_seed(0)
    model = Windowed(spec).to(device)
    optimizer = Optimizer(model, device)
    step = Step(model, model, optimizer, data, 8, 0.5)
    still = [step().item() for _ in range(4)]
    assert len(set(still)) == 4  # the rate is zero: only the windows differ
    optimizer.rate.fill_(1e-3)
    losses = [step().item() for _ in range(200)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
