"""CUDA graphs: capture a call once, replay it without the host's part in it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from fasteomt.errors import InputError, UnsupportedError, one_line

T = TypeVar("T")


@dataclass(frozen=True)
class Replay(Generic[T]):
    """A captured call. `outputs` are what it returned while captured: each replay writes into them.

    `call` is kept because the graph reads the tensors that it holds.
    """

    graph: torch.cuda.CUDAGraph
    outputs: T
    call: Callable[[], T]

    def replay(self) -> T:
        """Run the captured work on the current stream, on what the input tensors hold by then."""
        self.graph.replay()
        return self.outputs


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now and not within: a graph that dies during another one's capture spoils it."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def capture(call: Callable[[], T], warmups: int = 3) -> Replay[T]:
    """Capture `call` on the current CUDA device, after `warmups` calls that are not captured.

    Its tensors must stay where they are: new inputs are copied into them. Other threads may use the GPU
    meanwhile, all but torch's default random generator of that GPU, which belongs to whoever captures.

    Raises:
        UnsupportedError: no CUDA device, or `call` does what a graph can't hold, such as waiting for the GPU.
    """
    if warmups < 1:
        raise InputError(f"{warmups} warm-ups: a call must run at least once before it is captured")
    if not torch.cuda.is_available():
        raise UnsupportedError("a CUDA graph needs a CUDA device: see  fasteomt doctor")
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            call()
    current.wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with _no_collection(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = call()
    except RuntimeError as error:
        raise UnsupportedError(
            f"can't be captured in a CUDA graph: {one_line(error)[:200]}: keep the host from waiting for the "
            "GPU (.item(), .cpu(), nonzero), and join every side stream"
        ) from error
    return Replay(graph, outputs, call)
