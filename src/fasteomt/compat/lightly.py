"""The private names of LightlyTrain 0.16.2 that fasteomt touches."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fasteomt.checkpoint import MODEL_CLASS_PATH, Checkpoint, from_state
from fasteomt.errors import InputError, need

PRIVATE_NAMES = {"lightly_train._data.file_helpers": ("as_image_tensor",)}

# Attributes of DINOv3EoMTSemanticSegmentation that are read, called or replaced.
MODEL_ATTRIBUTES = (
    "init_args",
    "class_path",
    "classes",
    "model_name",
    "backbone",
    "predict",
    "predict_batch",
    "preprocess_image",
    "preprocess_batch",
    "forward_backend",
    "forward_train",
    "to_per_pixel_logits_semantic",
    "untile",
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


def last_logits(model: Any, crops: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer's logits: crops (B, 3, S, S), normalised -> masks (B, Q, s, s), classes (B, Q, K + 1).

    That is upstream's `forward_backend` without its last operation, the upsampling of the mask logits to S:
    the same outputs as the reference model's.
    """
    masks, classes = model.forward_train(crops, return_logits_per_layer=False)
    return masks[-1], classes[-1]


def cast_weights(model: Any, dtype: torch.dtype) -> None:
    """Cast a model's weights and buffers in place, except RoPE's periods: angles are fp32 in every dtype."""
    rope = model.backbone.rope_embed
    periods = rope.periods
    model.to(dtype)
    rope.periods = periods


def silence_events() -> None:
    """Keep LightlyTrain from posting usage events; must run before it is imported."""
    os.environ["LIGHTLY_TRAIN_EVENTS_DISABLED"] = "1"
