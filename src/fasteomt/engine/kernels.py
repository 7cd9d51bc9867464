"""A network made of kernels: a plan bound once for each number of crops, and replayed as a CUDA graph."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fasteomt.engine.binding import bind
from fasteomt.engine.graph import Replay, capture
from fasteomt.engine.packing import Packing
from fasteomt.engine.program import Program
from fasteomt.engine.tuning import table_of
from fasteomt.errors import InputError
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import Plan

# Programs kept, each with buffers of its own: a video has one size, and a program's last crops may be fewer.
MAX_PROGRAMS = 4


class _Turn:
    """Who runs: one call at a time. `done`: when the last one has ended on the GPU."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.done: torch.cuda.Event | None = None


# Of each GPU.
_TURNS: dict[torch.device, _Turn] = {}
_TURNS_LOCK = threading.Lock()


def _turn_on(device: torch.device) -> _Turn:
    """A GPU's, or a new one."""
    if device.type != "cuda":
        return _Turn()
    with _TURNS_LOCK:
        return _TURNS.setdefault(device, _Turn())


@dataclass(frozen=True)
class _Ready:
    program: Program
    graph: Replay[tuple[Tensor, Tensor]] | None


class Kernels:
    """A plan with its weights packed on `device`; they are copied, and may change afterwards.

    Several threads may share one: calls follow one another, on the GPU too. So do those of all others of the
    process there: each fills the GPU, and blocks of some kernels wait for one another, see
    `ops/linear/hopper_norm.cuh`.

    Args:
        graph: replay CUDA graphs; otherwise, and on a CPU, launch one by one.

    Raises:
        InputError, UnsupportedError: as `engine.binding.bind`.
    """

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], plan: Plan, device: torch.device, *,
        graph: bool,
    ) -> None:  # fmt: skip
        self.spec, self.plan, self.device = spec, plan, device
        self.graph = graph and device.type == "cuda"
        self._packing, self._table = Packing(spec, weights, device), table_of(device)
        self._start()
        # Bound once, so that everything is packed, and what can't be computed here is found out now.
        self._bind(1, spec.crop_size)
        self._packing.seal()

    def _start(self) -> None:
        self._ready: OrderedDict[tuple[int, int], _Ready] = OrderedDict()
        self._lock, self._turns = threading.RLock(), _turn_on(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Programs hold places in memory: a copy makes its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_ready", "_lock", "_turns")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def network(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Crops (B, 3, S, S) -> mask logits and class logits in the plan's formats. The next call with as
        many crops overwrites them, whoever makes it.

        Raises:
            InputError: crops that aren't square RGB. Others as `engine.binding.bind`.
        """
        with self._turn():
            ready = self._for(crops)
            return ready.program.run() if ready.graph is None else ready.graph.replay()

    def logits(self, crops: Tensor, *, eager: bool = False) -> tuple[Tensor, Tensor]:
        """As `network`, in fp32, for the caller to keep. `eager`: kernel by kernel."""
        if crops.dim() == 4 and len(crops) == 0:
            return self._nothing(crops.shape[-1])
        with self._turn():
            ready = self._for(crops)
            launch = ready.program.run if eager or ready.graph is None else ready.graph.replay
            masks, classes = launch()
            return masks.to(torch.float32, copy=True), classes.to(torch.float32, copy=True)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time, also where callers have streams of their own."""
        # Somebody's graph that is being captured may not wait for what is outside of it.
        events = self.device.type == "cuda" and not torch.cuda.is_current_stream_capturing()
        turn = self._turns
        with turn.lock:
            if events and turn.done is not None:
                turn.done.wait()
            try:
                yield
            finally:
                if events:
                    turn.done = turn.done or torch.cuda.Event()
                    turn.done.record()

    def program(self, crops: int, size: int) -> Program:
        """The program for so many crops of `size` x `size` pixels, made if it isn't there yet."""
        with self._lock:
            key = (crops, size)
            if key not in self._ready:
                program = self._bind(crops, size)
                self._ready[key] = _Ready(program, capture(program.run) if self.graph else None)
                if len(self._ready) > MAX_PROGRAMS:
                    self._ready.popitem(last=False)
            self._ready.move_to_end(key)
            return self._ready[key].program

    def _bind(self, crops: int, size: int) -> Program:
        return bind(self.spec, self.plan, self._packing, self.device, crops, size, self._table)

    def _for(self, crops: Tensor) -> _Ready:
        """What computes crops like these, with these in its input."""
        if crops.dim() != 4 or crops.shape[1] != 3 or not crops.is_floating_point():
            raise InputError(f"crops {tuple(crops.shape)} {crops.dtype}: must be (B, 3, S, S), floating")
        height, width = crops.shape[-2:]
        if height != width:
            raise InputError(f"crops of {width}x{height} pixels: kernels take square ones; use stack fp32")
        program = self.program(len(crops), height)
        seen = program.crops.shape[-1]
        program.crops.copy_(crops[..., :seen, :seen])
        return self._ready[len(crops), height]

    def _nothing(self, size: int) -> tuple[Tensor, Tensor]:
        """The logits of no crops."""
        spec = self.spec
        side = size // spec.patch_size * 2**spec.num_upscale_blocks
        shapes = (0, spec.num_queries, side, side), (0, spec.num_queries, len(spec.class_ids) + 1)
        masks, classes = (torch.empty(shape, dtype=torch.float32, device=self.device) for shape in shapes)
        return masks, classes
