"""Baselines of training: LightlyTrain's own step, unmodified, without its data loader.

LightlyTrain as configured by default ("bf16-mixed", matmul precision "auto") computes in fp32 on one GPU,
since Fabric enters autocast only where it redirects the step, as under DDP. Hence three baselines, named by
what they run. In all of them cuDNN may use TF32 in convolutions, which is torch's default and so upstream's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.checkpoint import Checkpoint
from fasteomt.compat.lightly import silence_events
from fasteomt.compat.lightly_training import IGNORE_INDEX, build_training, training_batch
from fasteomt.errors import InputError, UnsupportedError, brief, need
from fasteomt.model.spec import ModelSpec

# Masks per image grow with the classes that it shows at once, not with those that a model knows.
_MAX_CLASSES_PER_IMAGE = 16


@dataclass(frozen=True)
class Arithmetic:
    """`matmul`: torch's precision of fp32 matrix products, "highest" or "high" (TF32); `autocast`: whether
    forward pass and loss run under BF16 autocast."""

    summary: str
    matmul: str
    autocast: bool


TRAININGS = {
    "R0_fp32": Arithmetic(
        "LightlyTrain's step as it runs on one GPU: fp32, matmuls in IEEE fp32", "highest", False
    ),
    "R0_tf32": Arithmetic("LightlyTrain's step on one GPU with matmul precision 'high': TF32", "high", False),
    "upstream_bf16": Arithmetic(
        "LightlyTrain's step inside BF16 autocast, as it runs under DDP, on one GPU", "highest", True
    ),
}


@dataclass(frozen=True)
class Batch:
    """images (B, 3, H, W) fp32, normalised; masks (B, H, W) int64, index of the class among the model's, or
    upstream's -100 where no class is."""

    images: Tensor
    masks: Tensor


@dataclass(frozen=True)
class TrainingPeer:
    """A baseline ready to be timed.

    `step`: one optimizer step on the batch, which was moved to the device once; returns the loss, a scalar on
    the device, without waiting for it. Draws come from torch's global generators.
    `model`: LightlyTrain's model, whose weights the steps change.
    `module`: its training module, which holds `model` and the loss.
    """

    name: str
    step: Callable[[], Tensor]
    images_per_step: int
    model: Any
    module: Any


def load_training(name: str, checkpoint: Checkpoint, device: torch.device, batch: Batch) -> TrainingPeer:
    """A training baseline by its name, one of `TRAININGS`, from the checkpoint's weights.

    Forward pass, loss, backward pass, clipping, optimizer and schedule are those of LightlyTrain's training
    command for its default number of steps (40,000), without gradient accumulation: one batch is one step.
    The learning rate starts from zero, and the backbone's is zero for the first 500 steps, as upstream warms
    up.

    Raises:
        InputError: unknown name, or a batch that the model doesn't take.
        UnsupportedError: lightly_train isn't installed, or the device can't do the arithmetic.
    """
    arithmetic = TRAININGS.get(name)
    if arithmetic is None:
        raise InputError(f"unknown baseline {brief(name)}: choose one of {', '.join(TRAININGS)}")
    _check_device(name, arithmetic, device)
    spec = checkpoint.spec
    _check_batch(name, spec, batch)
    silence_events()
    need("lightly_train", extra="train")
    from lightning_fabric import Fabric

    fabric = Fabric(
        accelerator=device.type,
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="bf16-mixed",
    )
    training = build_training(
        spec.name,
        classes=spec.names,
        model_args={
            "num_queries": spec.num_queries,
            "num_joint_blocks": spec.num_joint_blocks,
            "patch_size": spec.patch_size,
            "fix_num_upscale_blocks": spec.num_upscale_blocks == 2,
        },
        transform_args={
            "image_size": spec.image_size,
            "normalize": {"mean": spec.mean, "std": spec.std},
        },
        fabric=fabric,
        batch=len(batch.images),
    )
    training.model.model.load_state_dict(checkpoint.weights, strict=True)
    batch_on_device = training_batch(batch.images.to(device), batch.masks.to(device))
    done = 0

    def step() -> Tensor:
        nonlocal done
        with _fp32_arithmetic(arithmetic.matmul):
            loss = training.step(batch_on_device, done, autocast=arithmetic.autocast)
        done += 1
        return loss

    return TrainingPeer(name, step, len(batch.images), training.model.model, training.model.module)


def photo_like(spec: ModelSpec, count: int, seed: int) -> Batch:
    """Images whose spectrum falls off as a photo's does, each with one ellipse of every class but the first.

    Returns:
        A batch of `count` images of the model's training size, on the CPU; the same for the same seed.
    """
    generator = torch.Generator().manual_seed(seed)
    height, width = spec.image_size
    images = torch.zeros(count, 3, height, width)
    # Octaves of equal strength: energy falls with the square of the frequency.
    for side in (4, 8, 16, 32, 64):
        noise = torch.randn(count, 3, side, side, generator=generator)
        images += F.interpolate(noise, (height, width), mode="bilinear")
    images = (images - images.mean()) / images.std()
    masks = torch.zeros(count, height, width, dtype=torch.int64)
    y = torch.arange(height)[:, None] / height
    x = torch.arange(width) / width
    for mask in masks:
        for index in range(1, min(len(spec.class_ids), _MAX_CLASSES_PER_IMAGE)):
            draw = torch.rand(4, generator=generator)
            centre, radius = 0.25 + 0.5 * draw[:2], 0.1 + 0.15 * draw[2:]
            inside = ((y - centre[0]) / radius[0]) ** 2 + ((x - centre[1]) / radius[1]) ** 2 < 1
            mask[inside] = index
    return Batch(images, masks)


def _check_device(name: str, arithmetic: Arithmetic, device: torch.device) -> None:
    # An older GPU would compute the same step in plain fp32, a CPU likewise, and say nothing.
    if arithmetic.matmul == "high" and (
        device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        raise UnsupportedError(
            f"baseline '{name}' needs a GPU with TF32 (compute capability 8.0), not {device}: use R0_fp32"
        )


def _check_batch(name: str, spec: ModelSpec, batch: Batch) -> None:
    images, masks = batch.images, batch.masks
    expected = (len(images), 3, *spec.image_size)
    if images.shape != expected or images.dtype != torch.float32:
        raise InputError(f"baseline '{name}': images must be {expected} float32: check their shape")
    if masks.shape != (len(images), *spec.image_size) or masks.dtype != torch.int64:
        raise InputError(
            f"baseline '{name}': masks must be (B, H, W) int64, as the images: check their shape"
        )
    known = (masks >= 0) & (masks < len(spec.class_ids))
    if len(images) == 0 or not bool((known | (masks == IGNORE_INDEX)).all()):
        indices = f"class indices below {len(spec.class_ids)} or {IGNORE_INDEX}"
        raise InputError(f"baseline '{name}': masks must hold {indices}: check them")


@contextmanager
def _fp32_arithmetic(matmul: str) -> Iterator[None]:
    """fp32 matrix products in torch's "highest" or "high" precision, convolutions in its default, whatever
    the process has; its own settings come back."""
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv)
    before = [setting.fp32_precision for setting in settings]
    try:
        torch.set_float32_matmul_precision(matmul)
        backends.cudnn.conv.fp32_precision = "tf32"
        yield
    finally:
        # torch keeps matmul precision twice and complains where the two differ, so both come back.
        torch.set_float32_matmul_precision("high" if before[0] == "tf32" else "highest")
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision
