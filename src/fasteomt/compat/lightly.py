"""The private names of LightlyTrain 0.16.2 that fasteomt touches."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fasteomt.checkpoint import MODEL_CLASS_PATH, Checkpoint, from_state
from fasteomt.errors import InputError, need

PRIVATE_NAMES = {"lightly_train._data.file_helpers": ("as_image_tensor",)}

# Attributes of DINOv3EoMTSemanticSegmentation that are read or replaced.
MODEL_ATTRIBUTES = (
    "init_args",
    "class_path",
    "predict",
    "predict_batch",
    "forward_backend",
    "internal_class_to_class",
)


def checkpoint_of(model: Any) -> Checkpoint:
    """The spec and weights of a LightlyTrain model in memory; the tensors are shared, not copied.

    Raises:
        InputError: not a DINOv3 EoMT semantic segmentation model.
    """
    if getattr(model, "class_path", None) != MODEL_CLASS_PATH:
        raise InputError(
            f"{type(model).__name__} is not LightlyTrain's DINOv3EoMTSemanticSegmentation: "
            "pass what lightly_train.load_model returned"
        )
    return from_state("LightlyTrain model in memory", dict(model.state_dict()), dict(model.init_args))


def image_tensor(image: Any) -> Tensor:
    """Whatever upstream's `predict` takes (path, URL, PIL image, tensor) -> (C, H, W), as upstream reads it.

    Integers are scaled to [0, 1] by their type's maximum, as upstream does.
    """
    helpers = need("lightly_train._data.file_helpers", extra="train")
    tensor: Tensor = helpers.as_image_tensor(image)
    if tensor.dtype == torch.uint8 or tensor.is_floating_point():
        return tensor
    return tensor.float() / torch.iinfo(tensor.dtype).max


def silence_events() -> None:
    """Keep LightlyTrain from posting usage events; must run before it is imported."""
    os.environ["LIGHTLY_TRAIN_EVENTS_DISABLED"] = "1"
