"""Engine: frames in, class maps out, on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fasteomt.errors import InputError, UnsupportedError, brief
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.model.tiling import ClassMap, Tiling, class_map, class_scores, crops_of_frame, untile
from fasteomt.stacks import Stack

MAX_CROPS_PER_BATCH = 8


def resolve_device(name: str | torch.device) -> torch.device:
    """'auto' is the first GPU, else the CPU.

    Raises:
        InputError: not a device's name, or no such device here.
    """
    if not isinstance(name, str | torch.device):
        raise InputError(f"device {brief(name)} is no name: use auto, cpu, cuda or cuda:N")
    if str(name) == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {brief(str(name))}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise InputError(f"device '{name}' is not supported: use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        found = f"only {count} CUDA device(s) found" if count else "no CUDA device found"
        raise InputError(f"device '{name}': {found}: use --device cpu, or see fasteomt doctor")
    return torch.device("cuda", index)


class Engine:
    """A model ready to run: its stack's plan, its weights on `device`.

    Weights that are fp32 and on `device` already are used in place, not copied.

    Raises:
        UnsupportedError: this device can't run the stack's number format.
    """

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], stack: Stack, device: torch.device
    ) -> None:
        self.spec, self.stack, self.device = spec, stack, device
        self.plan = stack.plan(spec)
        self.plan.check(spec)
        with torch.device("meta"):
            self.model = Eomt(spec)
        on_device = {k: v.to(device, torch.float32) for k, v in weights.items()}
        self.model.load_state_dict(on_device, strict=True, assign=True)
        self.model.requires_grad_(False).eval()
        self._probe()

    def _probe(self) -> None:
        """Run the stack's number format once, rather than guess from the device's name."""
        if self.stack.dtype is None:
            return
        try:
            with torch.autocast(self.device.type, self.stack.dtype):
                x = torch.ones(16, 16, device=self.device)
                supported = (x @ x).dtype == self.stack.dtype
        except RuntimeError:
            supported = False
        if not supported:
            raise UnsupportedError(
                f"stack '{self.stack.name}': {self.device} can't compute in it: use --stack fp32"
            )

    @torch.inference_mode()
    def logits(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised crops (B, 3, S, S) -> mask logits (B, Q, s, s), class logits (B, Q, K + 1), fp32."""
        with self._arithmetic():
            masks, classes = self.model(crops)
        return masks.float(), classes.float()

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        if self.stack.dtype is not None:
            with torch.autocast(self.device.type, self.stack.dtype):
                yield
            return
        # fp32 means fp32: whatever the process allows elsewhere, no TF32 or bfloat16 in here. Set where torch
        # keeps it, since its older global setting can't be read once a program has used these.
        backends: Any = torch.backends
        settings = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
        before = [setting.fp32_precision for setting in settings]
        try:
            for setting in settings:
                setting.fp32_precision = "ieee"
            yield
        finally:
            for setting, precision in zip(settings, before, strict=True):
                setting.fp32_precision = precision

    @torch.inference_mode()
    def scores(self, frame: Tensor) -> Tensor:
        """(3, H, W) RGB, uint8 or floating in [0, 1] -> class scores (K, h, w), of the resized frame."""
        tiling = Tiling.of(frame.shape[-2], frame.shape[-1], self.spec.crop_size)
        crops = crops_of_frame(frame.to(self.device), tiling, self.spec.mean, self.spec.std)
        size = self.spec.crop_size
        parts = [class_scores(*self.logits(batch), size) for batch in crops.split(MAX_CROPS_PER_BATCH)]
        return untile(torch.cat(parts), tiling)

    @torch.inference_mode()
    def class_map(self, frame: Tensor) -> ClassMap:
        """(3, H, W) RGB -> the best class index and its probability at each of the frame's pixels."""
        return class_map(self.scores(frame), frame.shape[-2], frame.shape[-1])
