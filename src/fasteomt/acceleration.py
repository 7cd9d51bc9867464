"""Put fasteomt's engine behind a LightlyTrain model that a program already holds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.compat.lightly import checkpoint_of, image_tensor
from fasteomt.engine import Engine, resolve_device
from fasteomt.errors import InputError
from fasteomt.stacks import get_stack

logger = logging.getLogger(__name__)


class Acceleration:
    """A patched model. `restore()` undoes the patch; as a context manager it does so at the block's end."""

    def __init__(self, model: Any, engine: Engine) -> None:
        self.model, self.engine = model, engine
        self._patched = {
            "predict": self._predict,
            "predict_batch": self._predict_batch,
            "forward_backend": self._forward_backend,
        }
        for name, function in self._patched.items():
            setattr(model, name, function)

    def restore(self) -> None:
        """Give the model its own methods back; calling it again does nothing."""
        for name in self._patched:
            self.model.__dict__.pop(name, None)

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def _predict(self, image: Any) -> Tensor:
        """As upstream's: (H, W) int32 class ids on the model's device."""
        index = self.engine.class_map(image_tensor(image)).index
        return torch.tensor(self.engine.spec.class_ids, dtype=torch.int32, device=index.device)[index]

    def _predict_batch(self, images: Sequence[Any]) -> list[Tensor]:
        return [self._predict(image) for image in images]

    def _forward_backend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As upstream's: mask logits (B, Q, H, W) upsampled to the crops, class logits (B, Q, K + 1)."""
        masks, classes = self.engine.logits(x.to(self.engine.device, torch.float32))
        masks = F.interpolate(masks, x.shape[-2:], mode="bilinear")
        return masks.to(x.dtype), classes.to(x.dtype)


def accelerate(model: Any, *, stack: str = "fp32") -> Acceleration:
    """Make a LightlyTrain DINOv3 EoMT model predict through fasteomt, on the device it is on.

    Replaces `predict`, `predict_batch` and `forward_backend` of this one instance; what they take and
    return stays. The engine uses the weights as they are now: after further training, restore and
    accelerate again.

    Raises:
        InputError: another kind of model, unknown stack; UnsupportedError: the device can't run the stack.
    """
    checkpoint = checkpoint_of(model)
    if any(name in model.__dict__ for name in ("predict", "predict_batch", "forward_backend")):
        raise InputError("this model is patched already: call restore() on its Acceleration first")
    device = resolve_device(next(model.parameters()).device)
    engine = Engine(checkpoint.spec, checkpoint.weights, get_stack(stack), device)
    logger.info("fasteomt: predict, predict_batch, forward_backend now run stack '%s' on %s", stack, device)
    return Acceleration(model, engine)
