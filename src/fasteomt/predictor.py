"""Predictor: what `fasteomt.load` returns. Images and streams in, Results out."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from fasteomt.checkpoint import Checkpoint, resolve
from fasteomt.engine import Engine, resolve_device
from fasteomt.errors import UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.picture import Picture, rgb_tensor
from fasteomt.result import Result
from fasteomt.stacks import Stack, get_stack

if TYPE_CHECKING:
    from fasteomt.model.tiling import ClassMap

logger = logging.getLogger(__name__)


def load(
    model: str | os.PathLike[str], *, device: str | torch.device = "auto", stack: str = "fp32"
) -> Predictor:
    """Open a model for prediction.

    Args:
        model: a checkpoint file, 'heads-vitt16' (shipped), or an architecture such as 'vitl16', which
            means seeded random weights.
        device: 'auto', 'cpu', 'cuda' or 'cuda:N'.
        stack: the arithmetic: 'fp32', 'bf16', 'fp16', ...; or 'auto', the fastest whose gates have passed
            for this model on this device.

    Raises:
        InputError: unknown model, device or stack; CheckpointError: the file can't be used.
        UnsupportedError: the device can't run the stack.
    """
    # The names first: reading a model takes time.
    where = resolve_device(device)
    if stack != "auto":
        arithmetic = get_stack(stack)
        return Predictor(resolve(model), stack=arithmetic, device=where)
    from fasteomt.gates.choice import choose_stack  # which is built on this module

    checkpoint = resolve(model)
    arithmetic, note = choose_stack(checkpoint, where)
    if note is not None:
        logger.warning("%s", note)
    return Predictor(checkpoint, stack=arithmetic, device=where, note=note)


class Predictor:
    """A model on a device. `source` and `sha256` say which file it came from; `note` what its results should
    carry along, or None."""

    def __init__(
        self, checkpoint: Checkpoint, *, stack: Stack, device: torch.device, note: str | None = None
    ) -> None:
        self.spec: ModelSpec = checkpoint.spec
        self.stack = stack
        self.device = device
        self.note = note
        self.source = checkpoint.source
        self.sha256 = checkpoint.sha256
        self.engine = Engine(checkpoint.spec, checkpoint.weights, stack, device)
        self._ids = np.array(self.spec.class_ids, dtype=self.spec.id_dtype)

    @overload
    def predict(self, image: list[Picture] | tuple[Picture, ...]) -> list[Result]: ...
    @overload
    def predict(self, image: Picture) -> Result: ...
    def predict(self, image: Any) -> Any:
        """Segment an image, or a list of images.

        Args:
            image: a path, a PIL image, an RGB array (H, W, 3) uint8, or a tensor (3, H, W), uint8 or
                floating in [0, 1]; or a list or tuple of these.

        Raises:
            InputError: not an image of these kinds, or a floating one with values outside [0, 1].
        """
        if isinstance(image, list | tuple):
            return [self.predict(one) for one in image]
        return self._result(self.engine.class_map(rgb_tensor(image)), pts=None)

    def predict_rgb(self, frame: np.ndarray, pts: float | None = None) -> Result:
        """Segment one (H, W, 3) uint8 RGB frame; `pts` (seconds) is carried through."""
        return self._result(self.engine.class_map(rgb_tensor(frame)), pts)

    def stream(self, source: str | Path | Sequence[str | Path]) -> Iterator[Result]:
        """Segment the frames of a video, image folder or glob, in order, each with its `pts`.

        Raises:
            InputError: nothing there that can be decoded.
        """
        from fasteomt.video import open_source

        with open_source(source) as frames:
            for frame in frames:
                yield self.predict_rgb(frame.rgb, frame.pts)

    def _result(self, found: ClassMap, pts: float | None) -> Result:
        classes = len(self.spec.class_ids)
        index = found.index.flatten()
        areas = torch.bincount(index, minlength=classes)
        # fp64: a sum of millions of fp32 probabilities would lose digits.
        sums = torch.bincount(index, weights=found.probability.flatten().double(), minlength=classes)
        counted: list[tuple[int, int, float]] = list(
            zip(self.spec.class_ids, areas.tolist(), sums.tolist(), strict=True)
        )
        if self.stack.recipe != "fp32" and not all(math.isfinite(total) for _, _, total in counted):
            others = "bf16 or fp32" if self.stack.recipe == "fp16" else "fp32"
            if self.stack.late == "fp16":
                others = "torch_bf16 or fp32"
            raise UnsupportedError(
                f"stack '{self.stack.name}': values beyond its format in this picture: use --stack {others}"
            )
        return Result(
            mask=self._ids[found.index.cpu().numpy()],
            names=self.spec.names,
            areas={i: area for i, area, _ in counted},
            confidence={i: total / area for i, area, total in counted if area},
            pts=pts,
        )
