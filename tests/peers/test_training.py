"""The training baselines are LightlyTrain's own loop, step for step, and in the arithmetic of their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fasteomt.bench.profile_rows import training_profile_rows
from fasteomt.checkpoint import Checkpoint, random_checkpoint
from fasteomt.compat.lightly import checkpoint_of
from fasteomt.compat.lightly_training import IGNORE_INDEX, random_backbone, training_batch
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.peers.training import TRAININGS, Batch, TrainingPeer, load_training, photo_like

lightly_train = pytest.importorskip("lightly_train", reason="needs the extra 'train'")

CPU = torch.device("cpu")
STEPS = 3


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return random_checkpoint(ModelSpec.from_name("vitt16", image_size=(64, 64), num_queries=20))


class StopLoop(Exception):
    """Breaks LightlyTrain's loop off."""


@dataclass
class Loop:
    """What LightlyTrain's loop did with its first batch, over and over: the weights before, the random state
    before and the loss of each step, the weights after."""

    start: list[Checkpoint] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    end: dict[str, Tensor] = field(default_factory=dict)


def write_data(root: Path) -> dict[str, Any]:
    """8 images of 64x64 pixels with their masks, for training and validation alike."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir()
    for i in range(8):
        mask = np.zeros((64, 64), np.uint8)
        mask[10:40, 10 + i : 40 + i] = 1
        mask[::4] = 9  # no class of the model's
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(root / "images" / f"{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
    folders = {"images": str(root / "images"), "masks": str(root / "masks")}
    return {"train": folders, "val": folders, "classes": {0: "background", 1: "head"}}


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """Steps of `lightly_train.train_semantic_segmentation` as configured by default, watched."""
    from lightly_train._task_models.dinov3_eomt_semantic_segmentation.train_model import (
        DINOv3EoMTSemanticSegmentationTrain,
    )

    own = DINOv3EoMTSemanticSegmentationTrain.training_step
    seen = Loop()

    def training_step(self: Any, fabric: Any, batch: Any, step: int) -> Any:
        if step == STEPS:
            seen.end = {k: v.clone() for k, v in self.model.state_dict().items()}
            raise StopLoop
        if step == 0:
            first = checkpoint_of(self.model)
            seen.start.append(replace(first, weights={k: v.clone() for k, v in first.weights.items()}))
            seen.batches.append(batch)
        seen.states.append(torch.get_rng_state())
        result = own(self, fabric=fabric, batch=seen.batches[0], step=step)
        seen.losses.append(result.loss.detach().clone())
        return result

    root = tmp_path_factory.mktemp("loop")
    weights = root / "backbone.pth"
    random_backbone("dinov3/vitt16-eomt", 0, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DINOv3EoMTSemanticSegmentationTrain, "training_step", training_step)
        patch.setenv("LIGHTLY_TRAIN_CACHE_DIR", str(root / "cache"))
        with pytest.raises(StopLoop):
            lightly_train.train_semantic_segmentation(
                out=str(root / "out"),
                data=write_data(root),
                model="dinov3/vitt16-eomt",
                batch_size=2,
                num_workers=0,
                accelerator="cpu",
                devices=1,
                gradient_accumulation_steps=1,
                model_args={"backbone_weights": str(weights)},
                transform_args={"image_size": (64, 64)},
                logger_args={"tensorboard": None},
            )
    return seen


def test_steps_equal_those_of_upstreams_own_loop(loop: Loop) -> None:
    """Same weights, batch and draws: the same losses, and after the optimizer's steps the same weights."""
    batch = Batch(loop.batches[0]["image"], loop.batches[0]["mask"])
    before = {k: v.clone() for k, v in loop.start[0].weights.items()}
    peer = load_training("R0_fp32", loop.start[0], CPU, batch)
    assert peer.images_per_step == 2 and len(loop.losses) == STEPS
    for state, loss in zip(loop.states, loop.losses, strict=True):
        torch.set_rng_state(state)
        torch.testing.assert_close(peer.step(), loss, rtol=1e-6, atol=0)
    found = peer.model.state_dict()
    # The head's rate grows from zero with the first step; the backbone's stays zero for 500.
    assert {k.partition(".")[0] for k, v in found.items() if not torch.equal(v, before[k])} == {
        "queries",
        "class_head",
        "mask_head",
        "upscale",
    }
    for name, value in loop.end.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9)


def test_batches_have_the_form_of_upstreams_loader(loop: Loop) -> None:
    theirs = loop.batches[0]
    assert IGNORE_INDEX in theirs["mask"]
    ours = training_batch(theirs["image"], theirs["mask"])
    assert set(ours) == set(theirs)
    for found, expected in zip(ours["binary_masks"], theirs["binary_masks"], strict=True):
        for key in ("masks", "labels"):
            assert found[key].dtype == expected[key].dtype and torch.equal(found[key], expected[key])


@pytest.fixture
def tf32_allowed() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("name", "dtype"), [("R0_fp32", torch.float32), ("upstream_bf16", torch.bfloat16)])
def test_each_baseline_computes_in_what_its_name_says(
    name: str, dtype: torch.dtype, checkpoint: Checkpoint, tf32_allowed: None
) -> None:
    """Whatever the process allows; the weights and the optimizer's arithmetic stay fp32."""
    matmul: Any = torch.backends.cuda.matmul
    peer = load_training(name, checkpoint, CPU, photo_like(checkpoint.spec, 2, seed=0))
    seen: set[tuple[torch.dtype, str]] = set()

    def watch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.add((output.dtype, matmul.fp32_precision))

    for module in peer.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(watch)
    before = peer.model.class_head.weight.detach().clone()
    losses = [peer.step() for _ in range(2)]
    assert seen == {(dtype, "ieee")} and matmul.fp32_precision == "tf32"
    assert torch.get_float32_matmul_precision() == "high"  # readable again
    assert all(bool(loss.isfinite()) and not loss.requires_grad for loss in losses)
    assert not torch.equal(peer.model.class_head.weight, before)
    assert {p.dtype for p in peer.model.parameters()} == {torch.float32}
    assert peer.model.training and checkpoint.weights["class_head.weight"].dtype == torch.float32


def test_bf16_and_fp32_start_from_the_same_loss(checkpoint: Checkpoint) -> None:
    batch = photo_like(checkpoint.spec, 2, seed=0)

    def first_loss(name: str) -> float:
        peer = load_training(name, checkpoint, CPU, batch)
        torch.manual_seed(1)
        return float(peer.step())

    # Sampled points depend on the logits, hence not closer.
    assert first_loss("upstream_bf16") == pytest.approx(first_loss("R0_fp32"), rel=0.05)


def test_tf32_needs_a_gpu_that_has_it(checkpoint: Checkpoint) -> None:
    with pytest.raises(UnsupportedError, match="'R0_tf32' needs a GPU with TF32"):
        load_training("R0_tf32", checkpoint, CPU, photo_like(checkpoint.spec, 2, seed=0))


def test_bad_batches_and_names_are_refused(checkpoint: Checkpoint) -> None:
    images, masks = (good := photo_like(checkpoint.spec, 2, seed=0)).images, good.masks
    for batch, said in (
        (Batch(images[..., :32], masks), "images must be"),
        (Batch(images.half(), masks), "images must be"),
        (Batch(images, masks[:1]), "masks must be"),
        (Batch(images, masks + 1), "class indices below 2 or -100"),
        (Batch(images, masks - 1), "class indices below 2 or -100"),
        (Batch(images[:0], masks[:0]), "class indices below 2"),
    ):
        with pytest.raises(InputError, match=said):
            load_training("R0_fp32", checkpoint, CPU, batch)
    with pytest.raises(InputError, match="unknown baseline 'R0': choose one of R0_fp32"):
        load_training("R0", checkpoint, CPU, good)


def test_photo_like_batches_are_seeded_smooth_and_show_every_class() -> None:
    spec = ModelSpec.from_name("vitt16", image_size=(128, 96))
    batch, again, other = (photo_like(spec, 3, seed) for seed in (0, 0, 1))
    assert torch.equal(batch.images, again.images) and torch.equal(batch.masks, again.masks)
    assert not torch.equal(batch.images, other.images) and not torch.equal(batch.masks, other.masks)
    assert batch.images.shape == (3, 3, 128, 96) and batch.masks.shape == (3, 128, 96)
    assert float(batch.images.std()) == pytest.approx(1, abs=0.01)
    # Neighbouring pixels are alike, as in photos and unlike in noise.
    assert float((batch.images[..., 1:] - batch.images[..., :-1]).std()) < 0.5
    assert all(mask.unique().tolist() == [0, 1] for mask in batch.masks)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(TRAININGS))
def test_every_training_baseline_steps_on_a_gpu(name: str, checkpoint: Checkpoint) -> None:
    device = torch.device("cuda", 0)
    peer: TrainingPeer = load_training(name, checkpoint, device, photo_like(checkpoint.spec, 2, seed=0))
    before = peer.model.class_head.weight.detach().clone()
    assert all(bool(peer.step().isfinite()) for _ in range(3))
    assert before.device == device and not torch.equal(peer.model.class_head.weight, before)


@pytest.mark.gpu
def test_a_training_step_is_profiled_by_site(checkpoint: Checkpoint) -> None:
    rows = training_profile_rows(checkpoint, "small", torch.device("cuda", 0), "upstream_bf16", batch=2)
    spent = {row.phase: row.median or 0 for row in rows}
    for kind in ("block.*.fc1", "block.*.fc1 backward", "loss", "loss backward", "optimizer"):
        assert spent[kind] > 0
    assert spent["outside any site"] < 0.5 * spent[None]
