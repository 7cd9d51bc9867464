"""Engine: frames in, class maps out, on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fasteomt.engine.kernels import Kernels
from fasteomt.engine.program import Program
from fasteomt.errors import InputError, UnsupportedError, brief
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.model.tiling import ClassMap, Tiling, class_map, class_scores, crops_of_frame, untile
from fasteomt.ops.target import Target

if TYPE_CHECKING:
    from fasteomt.stacks import Stack  # which is built on this package

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


@contextmanager
def _ieee_fp32() -> Iterator[None]:
    """fp32 means fp32: whatever the process allows elsewhere, no TF32 or bfloat16 in here."""
    # Set where torch keeps it, since its older global setting can't be read once a program has used these.
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


class Engine:
    """A model ready to run: its stack's plan, its weights on `device`.

    In stack 'fp32', weights that are fp32 and on `device` already are used in place; other stacks copy them.
    Threads may share one.

    Raises:
        UnsupportedError: this device lacks what the stack's plan names, or a weight is beyond its format.
    """

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], stack: Stack, device: torch.device
    ) -> None:
        self.spec, self.stack, self.device = spec, stack, device
        self.plan = stack.plan(spec, Target.of(device))
        self.plan.check(spec)
        self._kernels: Kernels | None = None
        if stack.recipe == "fp32":
            with torch.device("meta"):
                self.model = Eomt(spec)
            on_device = {k: v.to(device, torch.float32) for k, v in weights.items()}
            self.model.load_state_dict(on_device, strict=True, assign=True)
            self.model.requires_grad_(False).eval()
        else:
            try:
                with torch.no_grad(), self._arithmetic():
                    self._kernels = Kernels(spec, weights, self.plan, device, graph=stack.graph)
            except UnsupportedError as error:
                plain = f"torch_{stack.recipe}"
                remedy = "" if stack.name == plain else f", or --stack {plain}, torch's own kernels"
                raise UnsupportedError(f"stack '{stack.name}': {error}{remedy}") from None

    @property
    def replays(self) -> bool:
        """Whether `logits` replays a CUDA graph."""
        return self._kernels is not None and self._kernels.graph

    @torch.inference_mode()
    def network(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """As `logits`, in the plan's formats; the next call, by whomever, may overwrite what it returns."""
        if self._kernels is None:
            return self._reference(crops)
        with self._arithmetic():
            return self._kernels.network(crops)

    @torch.inference_mode()
    def logits(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised crops (B, 3, S, S) -> mask logits (B, Q, s, s), class logits (B, Q, K + 1), fp32."""
        if self._kernels is None:
            return self._reference(crops)
        with self._arithmetic():
            return self._kernels.logits(crops)

    @torch.inference_mode()
    def eager_logits(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """As `logits`, without a CUDA graph."""
        if self._kernels is None:
            return self._reference(crops)
        with self._arithmetic():
            return self._kernels.logits(crops, eager=True)

    @torch.inference_mode()
    def program(self, crops: int) -> Program:
        """The launches for so many crops.

        Raises:
            UnsupportedError: stack 'fp32' has none.
        """
        if self._kernels is None:
            raise UnsupportedError(f"stack '{self.stack.name}' is no program of kernels: choose another")
        with self._arithmetic():
            return self._kernels.program(crops, self.spec.crop_size)

    @torch.inference_mode()
    def warm_up(self, crops: int) -> None:
        """Do now what the first `crops` crops would wait for: compile and capture."""
        size = self.spec.crop_size
        self.network(torch.zeros(crops, 3, size, size, dtype=torch.float32, device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _reference(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        with self._arithmetic(), _ieee_fp32():
            masks, classes = self.model(crops)
        return masks, classes

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """The stack's own, whatever autocast the caller is in, on the engine's GPU."""
        current = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with current, torch.autocast(self.device.type, enabled=False):
            yield

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
