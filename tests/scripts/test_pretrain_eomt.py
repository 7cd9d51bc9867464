"""The pre-training script: its windows, its loss, and a run of seconds to an export that opens."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from fasteomt.checkpoint import random_checkpoint, read, write_export
from fasteomt.data.dataset import open_dataset
from fasteomt.data.synth import write_dataset
from fasteomt.model.reference import rope_tables
from fasteomt.model.spec import ModelSpec

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "pretrain_eomt.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pretrain_eomt", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pretrain_eomt"] = module  # its reader function is pickled by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pretrain") / "data"
    write_dataset(root, train=6, valid=2, size=(160, 120), seed=0, workers=1)
    return root


@pytest.fixture(scope="module")
def resident(script: ModuleType, data_root: Path) -> object:
    return script.Resident.load(open_dataset(data_root, "train"), torch.device("cpu"), workers=1)


def test_middle_window_is_the_resized_middle_of_the_image(script, data_root, resident) -> None:
    data = open_dataset(data_root, "train")
    for i, sample in enumerate(data):
        height, width = sample.size
        short = min(height, width)
        images, targets = resident.windows(torch.tensor([i]), short, 1.0, random=False)
        top, left = (height - short) / 2, (width - short) / 2
        if top % 1 or left % 1:
            continue
        rows, columns = slice(int(top), int(top) + short), slice(int(left), int(left) + short)
        expected = torch.from_numpy(sample.rgb().copy()).permute(2, 0, 1)[:, rows, columns] / 255
        assert (images[0] - expected).abs().max() < 2e-3
        assert torch.equal(targets[0], torch.from_numpy(sample.mask())[rows, columns].long())


def test_random_windows_keep_image_and_target_together(script, resident) -> None:
    """Paint the image with its own target: whatever the window, both must still agree."""
    head = (resident.targets == 1).to(torch.uint8) * 255
    painted = replace(resident, images=head[:, None].expand(-1, 3, -1, -1).contiguous())
    torch.manual_seed(0)
    images, targets = painted.windows(torch.arange(6).repeat(8), 64, 0.5, random=True)
    bright = images[:, 0] > 0.5
    assert (bright == (targets == 1)).float().mean() > 0.98
    assert 0.02 < bright.float().mean() < 0.7


def test_rope_of_the_whole_crop_is_the_references(script) -> None:
    model = script.Eomt(ModelSpec.from_name("vitt16", image_size=(128, 128)))
    whole = script.rope_of_window(model, 8, random=False)
    for ours, theirs in zip(whole, rope_tables(model.backbone.rope_embed.periods, 8, 8), strict=True):
        torch.testing.assert_close(ours, theirs)
    part = script.rope_of_window(model, 4, random=False)[0].unflatten(0, (4, 4))
    torch.testing.assert_close(part, whole[0].unflatten(0, (8, 8))[2:6, 2:6])


def test_loss_is_least_for_the_truth(script) -> None:
    targets = torch.zeros(2, 16, 16, dtype=torch.long)
    targets[0, :8] = 1
    targets[1, 12:] = script.IGNORE
    one_hot = torch.stack([(targets == k).float() for k in range(2)], dim=1)
    right = F.avg_pool2d(one_hot, 4) * 40 - 20
    masks = torch.cat([right, torch.randn(2, 3, 4, 4)], dim=1)
    classes = torch.full((2, 5, 3), -20.0)
    classes[:, 2:, 2] = 20
    classes[:, 0, 0] = 20
    classes[0, 1, 1] = 20  # image 1 shows no object of class 1
    classes[1, 1, 2] = 20
    best = script.fixed_assignment_loss(masks, classes, targets, 2)
    assert best < 0.02
    assert script.fixed_assignment_loss(-masks, classes, targets, 2) > 5
    assert script.fixed_assignment_loss(masks, -classes, targets, 2) > 5
    ignored = masks.clone()
    ignored[1, :, 3] = 100.0
    assert script.fixed_assignment_loss(ignored, classes, targets, 2) == pytest.approx(best.item())


def test_a_short_run_ends_in_an_export(script, data_root, tmp_path, monkeypatch) -> None:
    small = ModelSpec.from_name(
        "vitt16", embed_dim=64, num_heads=1, ffn_hidden=64, depth=2, num_joint_blocks=1
    )
    from dataclasses import replace

    def from_name(name: str, **changes: object) -> ModelSpec:
        return replace(small, **changes)

    monkeypatch.setattr(script.ModelSpec, "from_name", staticmethod(from_name))
    common = ["--data-root", str(data_root), "--image-size", "64", "--batch-size", "4", "--workers", "1"]
    common += ["--device", "cpu", "--seconds", "1.5"]
    first = tmp_path / "first.pt"
    assert script.main([*common, "--out", str(first)]) == 0
    found = read(first)
    assert found.spec.class_names == ("background", "head")
    assert script.main([*common, "--out", str(tmp_path / "second.pt"), "--start", str(first)]) == 0
    assert script.main([*common, "--out", str(first)]) == 2  # exists
    other = random_checkpoint(replace(small, num_queries=7))
    write_export(tmp_path / "other.pt", other.spec, other.weights)
    third = tmp_path / "third.pt"
    assert script.main([*common, "--out", str(third), "--start", str(tmp_path / "other.pt")]) == 2
    assert not third.exists()


@pytest.mark.gpu
def test_replayed_steps_draw_anew_and_learn(script, data_root) -> None:
    device = torch.device("cuda")
    data = script.Resident.load(open_dataset(data_root, "train"), device, workers=1)
    spec = ModelSpec.from_name("vitt16", image_size=(128, 128), class_names=("background", "head"))
    torch.manual_seed(0)
    model = script.Windowed(spec).to(device)
    optimizer = script.optimizer_of(model, device)
    step = script.Step(model, model, optimizer, data, 8, 0.5)
    still = [step().item() for _ in range(4)]
    assert len(set(still)) == 4  # the rate is zero: only the windows differ
    for group in optimizer.param_groups:
        group["lr"].fill_(1e-3)
    losses = [step().item() for _ in range(200)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
