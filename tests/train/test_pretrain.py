"""Pre-training: rotary positions of windows, the optimizer's shares, and steps replayed as a graph."""

from __future__ import annotations

import pytest
import torch

from fasteomt.data.fresh import CLASSES, fresh_head, largest_side
from fasteomt.model.reference import Eomt, rope_tables
from fasteomt.model.spec import ModelSpec
from fasteomt.train.pretrain import Optimizer, Step, Windowed, rope_of_window
from fasteomt.train.resident import Resident

SIZE = (160, 120)


def test_rope_of_the_whole_crop_is_the_references() -> None:
    model = Eomt(ModelSpec.from_name("vitt16", image_size=(128, 128)))
    whole = rope_of_window(model, 8, random=False)
    for ours, theirs in zip(whole, rope_tables(model.backbone.rope_embed.periods, 8, 8), strict=True):
        torch.testing.assert_close(ours, theirs)
    part = rope_of_window(model, 4, random=False)[0].unflatten(0, (4, 4))
    torch.testing.assert_close(part, whole[0].unflatten(0, (8, 8))[2:6, 2:6])


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
