"""Crops side by side: a program for each part of them, on streams of their own.

A kernel leaves multiprocessors idle where it starts and ends, and waits for memory in between. Where kernels
are small enough for two to share a multiprocessor, those of another chain fill these gaps: crops don't depend
on one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from fasteomt.engine.program import Launch, Mark, Program, forked


class Chains:
    """Like a `Program` of all crops.

    Args:
        crops, masks, classes: of all, as in `Program`; those of `programs`, in order, are parts of them.
    """

    def __init__(self, crops: Tensor, masks: Tensor, classes: Tensor, programs: Sequence[Program]) -> None:
        self.crops, self.masks, self.classes = crops, masks, classes
        self._first, *self._others = programs
        self._streams = [torch.cuda.Stream(crops.device) if crops.is_cuda else None for _ in self._others]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Chain by chain."""
        return sum((program.launches for program in self._others), self._first.launches)

    @torch.inference_mode()
    def run(self, mark: Mark = lambda group: nullcontext()) -> tuple[Tensor, Tensor]:
        """As `Program.run`."""
        for stream, program in zip(self._streams, self._others, strict=True):
            with forked(stream):
                program.run(mark, joins=True)
        self._first.run(mark)
        for stream in self._streams:
            if stream is not None:
                torch.cuda.current_stream(stream.device).wait_stream(stream)
        return self.masks, self.classes
