"""The private names of LightlyTrain 0.16.2 that training touches.

LightlyTrain's own training module, built and driven as its training command does; and the batch probe: how
many images its training and validation steps fit a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fasteomt.errors import InputError, UnsupportedError

PRIVATE_NAMES = {
    "lightly_train._commands.train_task_helpers": (
        "get_metric_args",
        "get_train_model_args",
        "get_transform_args",
    ),
    "lightly_train._data.mask_semantic_segmentation_dataset": (
        "MaskSemanticSegmentationDataArgs",
        "MaskSemanticSegmentationDataArgs.ignore_index",
    ),
    "lightly_train._models.dinov3.dinov3_package": (
        "DINOV3_PACKAGE",
        "DINOV3_PACKAGE.get_model",
        "DINOV3_PACKAGE.model_name_to_statedict_name",
        "MODEL_NAME_TO_INFO",
    ),
    "lightly_train._task_models.dinov3_eomt_semantic_segmentation.train_model": (
        "DINOv3EoMTSemanticSegmentationTrain",
        "DINOv3EoMTSemanticSegmentationTrain.clip_gradients",
        "DINOv3EoMTSemanticSegmentationTrain.get_optimizer",
        "DINOv3EoMTSemanticSegmentationTrain.get_train_model_args_cls",
        "DINOv3EoMTSemanticSegmentationTrain.on_train_batch_end",
        "DINOv3EoMTSemanticSegmentationTrain.set_train_mode",
        "DINOv3EoMTSemanticSegmentationTrain.train_model_args_cls",
        "DINOv3EoMTSemanticSegmentationTrain.train_model_args_cls.default_batch_size",
        "DINOv3EoMTSemanticSegmentationTrain.train_model_args_cls.default_steps",
        "DINOv3EoMTSemanticSegmentationTrain.training_step",
        "DINOv3EoMTSemanticSegmentationTrain.validation_step",
    ),
}
# LightlyTrain accumulates gradients when a batch is at most half of this.
DEFAULT_BATCH_SIZE = 16
# In upstream's masks: where no class is, as beside an image that was padded.
IGNORE_INDEX = -100
# Room for fragmentation and for what the random batches of the probe don't show.
_MEMORY_SHARE = 0.9
# Masks per image grow with the classes that an image shows at once, not with those that a data set knows.
_MAX_CLASSES_PER_IMAGE = 16


def backbone_name(model: str) -> str:
    """LightlyTrain's name of a model's backbone, 'vitb16' for 'dinov3/vitb16-eomt'.

    Raises:
        InputError: LightlyTrain doesn't know the model.
    """
    from lightly_train._models.dinov3.dinov3_package import DINOV3_PACKAGE, MODEL_NAME_TO_INFO

    stem = model.removeprefix("dinov3/").removesuffix("-eomt")
    known = DINOV3_PACKAGE.model_name_to_statedict_name(stem)[0] in MODEL_NAME_TO_INFO
    if f"dinov3/{stem}-eomt" != model or not stem.startswith("vit") or not known:
        raise InputError(f"unknown model '{model}': use a name like dinov3/vitb16-eomt, or a checkpoint")
    return stem


def random_backbone(model: str, seed: int, path: Path) -> None:
    """Save a backbone as LightlyTrain initialises it. A weights file, since its names can't say 'random' for
    every size."""
    from lightly_train._models.dinov3.dinov3_package import DINOV3_PACKAGE

    torch.manual_seed(seed)
    torch.save(DINOV3_PACKAGE.get_model(backbone_name(model), load_weights=False).state_dict(), path)


@dataclass(frozen=True)
class Training:
    """LightlyTrain's training module and optimizer, wrapped by `fabric`, its learning rate schedule, and the
    (height, width) in pixels of its training images."""

    model: Any
    optimizer: Any
    scheduler: Any
    fabric: Any
    image_size: tuple[int, int]

    def step(self, batch: dict[str, Any], index: int, *, autocast: bool) -> Tensor:
        """Optimizer step number `index`, from 0, as the training command's loop does one without gradient
        accumulation; returns the loss, a scalar on the device.

        `autocast`: the forward pass and the loss run inside the precision that Fabric was given. Under DDP
        Fabric enters it for `training_step`; on a single device it doesn't.
        """
        with self.fabric.autocast() if autocast else nullcontext():
            loss = self.model.training_step(fabric=self.fabric, batch=batch, step=index).loss
        self.fabric.backward(loss)
        self.model.clip_gradients(fabric=self.fabric, optimizer=self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.model.on_train_batch_end()
        return loss.detach()


def build_training(
    model_name: str,
    *,
    classes: dict[int, str],
    model_args: dict[str, Any],
    transform_args: dict[str, Any],
    fabric: Any,
    batch: int | None = None,
) -> Training:
    """Model, optimizer and schedule as `train_semantic_segmentation` makes them for its default number of
    steps, with random weights, in training mode and on Fabric's device.

    Args:
        model_name, classes, model_args, transform_args: what `train_semantic_segmentation` gets.
        batch: images a step, which set the learning rate; None is upstream's default.
    """
    from lightly_train._commands import train_task_helpers as helpers
    from lightly_train._data.mask_semantic_segmentation_dataset import MaskSemanticSegmentationDataArgs
    from lightly_train._task_models.dinov3_eomt_semantic_segmentation.train_model import (
        DINOv3EoMTSemanticSegmentationTrain,
    )

    upstream: Any = DINOv3EoMTSemanticSegmentationTrain
    steps = upstream.train_model_args_cls.default_steps
    folders = {"images": ".", "masks": "."}
    data = MaskSemanticSegmentationDataArgs.model_validate(
        {"train": folders, "val": folders, "classes": classes}
    )
    train_transform: Any
    arguments = helpers.get_train_model_args(
        model_args={k: v for k, v in model_args.items() if k != "backbone_weights"},
        model_args_cls=upstream.get_train_model_args_cls(model_name),
        total_steps=steps,
        gradient_accumulation_steps=1,
        train_num_batches=1,
        model_name=model_name,
        model_init_args={},
        data_args=data,
    )
    train_transform, val_transform = helpers.get_transform_args(
        train_model_cls=upstream,
        model_name=model_name,
        transform_args=transform_args,
        ignore_index=data.ignore_index,
        model_init_args={},
        total_steps=steps,
        train_num_batches=1,
        gradient_accumulation_steps=1,
    )
    model: Any = upstream(
        model_name=model_name,
        model_args=arguments,
        data_args=data,
        train_transform_args=train_transform,
        val_transform_args=val_transform,
        load_weights=False,
        metric_args=helpers.get_metric_args(upstream, None, data),
        gradient_accumulation_steps=1,
    )
    model.set_train_mode()
    optimizer, scheduler = model.get_optimizer(
        total_steps=steps, global_batch_size=batch or upstream.train_model_args_cls.default_batch_size
    )
    model, optimizer = fabric.setup(model, optimizer)
    return Training(model, optimizer, scheduler, fabric, train_transform.image_size)


def training_batch(images: Tensor, masks: Tensor) -> dict[str, Any]:
    """Images (B, 3, H, W) fp32, normalised, and class indices (B, H, W) int64, in the form of upstream's
    collate function for training: one binary mask for each class that an image shows. Pixels of
    `IGNORE_INDEX` belong to none."""
    labels = [shown[shown != IGNORE_INDEX] for shown in (mask.unique() for mask in masks)]
    return {
        "image_path": [""] * len(images),
        "image": images,
        "mask": masks,
        "binary_masks": [
            {"masks": mask == shown[:, None, None], "labels": shown}
            for mask, shown in zip(masks, labels, strict=True)
        ],
    }


def largest_batch(
    model_name: str,
    *,
    classes: dict[int, str],
    model_args: dict[str, Any],
    transform_args: dict[str, Any],
    precision: Any,
    crops: int,
    limit: int,
) -> int:
    """Try upstream's steps with random images of the training size, on the current CUDA device.

    Args:
        model_name, classes, model_args, transform_args, precision: what `train_semantic_segmentation` gets.
        crops: square crops that the widest validation image is cut into.
        limit: never try more images than this.

    Raises:
        UnsupportedError: not even one image fits.
    """

    def probe() -> int:
        step, start = _steps(model_name, classes, model_args, transform_args, precision, crops)
        return search(lambda batch: _fits(step, batch), start=min(start, limit), limit=limit)

    torch.cuda.set_per_process_memory_fraction(_MEMORY_SHARE)
    try:
        return probe()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        _release()


def search(fits: Callable[[int], bool], *, start: int, limit: int) -> int:
    """The largest batch in [1, limit] that fits, to within an eighth: double or halve, then bisect."""
    good, bad = 0, limit + 1
    batch = start
    while good == 0 or bad - good > max(1, good // 8):
        if fits(batch):
            good = batch
        else:
            bad = batch
        if bad == 1:
            raise UnsupportedError(
                "not one image fits into this GPU's memory: choose a smaller --model or --image-size"
            )
        if good == 0:
            batch = max(1, bad // 2)
        elif bad > limit:
            batch = min(2 * good, limit)
        else:
            batch = (good + bad) // 2
        if good == limit:
            break
    return good


def _fits(step: Callable[[int], None], batch: int) -> bool:
    fits = True
    try:
        step(batch)
    except torch.cuda.OutOfMemoryError:
        fits = False
    # Only here is the exception gone, and with it the tensors that its frames held.
    _release()
    print(f"batch probe: {batch} images {'fit' if fits else 'do not fit'}", flush=True)
    return fits


def _release() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _steps(
    model_name: str,
    classes: dict[int, str],
    model_args: dict[str, Any],
    transform_args: dict[str, Any],
    precision: Any,
    crops: int,
) -> tuple[Callable[[int], None], int]:
    """The probe's step at a given batch, and the batch to try first; weights don't matter here."""
    from lightly_train._task_models.dinov3_eomt_semantic_segmentation.train_model import (
        DINOv3EoMTSemanticSegmentationTrain,
    )
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="auto", devices=1, precision=precision)
    training = build_training(
        model_name, classes=classes, model_args=model_args, transform_args=transform_args, fabric=fabric
    )
    model, optimizer = training.model, training.optimizer
    height, width = training.image_size
    short = min(height, width)
    shown = min(len(classes), _MAX_CLASSES_PER_IMAGE)

    def step(batch: int) -> None:
        try:
            optimizer.zero_grad()
            model.set_train_mode()
            training.step(_batch(batch, height, width, shown, fabric.device), 0, autocast=False)
            model.eval()
            with torch.no_grad():
                images = _batch(batch, short, short * crops, shown, fabric.device)
                # Validation images come as lists: their sizes may differ.
                images["image"], images["mask"] = list(images["image"]), list(images["mask"])
                model.validation_step(fabric=fabric, batch=images, step=0)
            model.val_metrics.reset()
        finally:
            optimizer.zero_grad()

    return step, int(DINOv3EoMTSemanticSegmentationTrain.train_model_args_cls.default_batch_size)


def _batch(batch: int, height: int, width: int, classes: int, device: torch.device) -> dict[str, Any]:
    """Random images and masks; with so many pixels every class shows."""
    masks = torch.randint(classes, (batch, height, width), device=device)
    return training_batch(torch.randn(batch, 3, height, width, device=device), masks)
