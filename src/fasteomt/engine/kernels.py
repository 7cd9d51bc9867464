"""A network made of kernels: a plan bound once for each number of crops, and replayed as a CUDA graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.engine.binding import bind
from fasteomt.engine.graph import Replay, capture
from fasteomt.engine.packing import Packing
from fasteomt.engine.program import Program
from fasteomt.errors import InputError
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import Plan

# Programs kept, each with buffers of its own: a video has one size, and a program's last crops may be fewer.
MAX_PROGRAMS = 4


@dataclass(frozen=True)
class _Ready:
    program: Program
    graph: Replay[tuple[Tensor, Tensor]] | None


class Kernels:
    """`graph`: replay CUDA graphs; otherwise, and on a CPU, launch one by one."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], plan: Plan, device: torch.device, *, graph: bool
    ) -> None:
        self.spec, self.plan, self.device = spec, plan, device
        self.graph = graph and device.type == "cuda"
        self._packing = Packing(spec, weights, device)
        self._ready: OrderedDict[tuple[int, int], _Ready] = OrderedDict()

    def logits(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Crops (B, 3, S, S) -> mask logits and class logits in the plan's formats. The next call with
        as many crops overwrites them.

        Raises:
            InputError: crops that aren't square. Others as `engine.binding.bind`.
        """
        ready = self._for(crops)
        ready.program.crops.copy_(crops)
        return ready.program.run() if ready.graph is None else ready.graph.replay()

    def eager_logits(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """As `logits`, kernel by kernel."""
        program = self._for(crops).program
        program.crops.copy_(crops)
        return program.run()

    def program(self, crops: int, size: int) -> Program:
        """The program for so many crops of `size` x `size` pixels, made if it isn't there yet."""
        key = (crops, size)
        if key not in self._ready:
            program = bind(self.spec, self.plan, self._packing, self.device, crops, size)
            self._ready[key] = _Ready(program, capture(program.run) if self.graph else None)
            if len(self._ready) > MAX_PROGRAMS:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key)
        return self._ready[key].program

    def _for(self, crops: Tensor) -> _Ready:
        count, _, height, width = crops.shape
        if height != width:
            raise InputError(f"crops of {width}x{height} pixels: kernels take square ones")
        self.program(count, height)
        return self._ready[count, height]
