"""A plan bound to weights, a device and a number of crops: buffers, and the launches that fill them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.ops.early import ordinary_launches
from fasteomt.plan import Group

Mark = Callable[[Group], AbstractContextManager[object]]


@dataclass
class Buffer:
    """A tensor that one launch writes and others read. `tensor` is looked up at each launch, since libraries
    that allocate their results put them here."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: Tensor

    def read(self, group: Group, dtype: torch.dtype) -> Callable[[], Tensor]:
        """Access for `group`, which needs `dtype`.

        Raises:
            InputError: the plan gives another format here.
        """
        if self.dtype != dtype:
            raise InputError(
                f"plan: site '{group.sites[0]}' takes {_name(dtype)}, but '{self.name}' gives "
                f"{_name(self.dtype)}: give both one recipe"
            )
        return lambda: self.tensor

    def view(self, *shape: int) -> Buffer:
        """The same memory, in another shape."""
        return Buffer(self.name, shape, self.dtype, self.tensor.view(shape))

    def part(self, start: int, end: int) -> Buffer:
        """Some of its rows."""
        rows = self.tensor[start:end]
        return Buffer(self.name, tuple(rows.shape), self.dtype, rows)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Places:
    """Where a program reads its crops and leaves its results: as in `Program`, but classes (B, Q, N) with the
    padding that the class head's product writes."""

    crops: Tensor
    masks: Tensor
    classes: Tensor


@dataclass(frozen=True)
class Launch:
    """What one group does at run time. `side`: independent of the launches after it up to the next join."""

    group: Group
    run: Callable[[], object]
    side: bool = False


class Program:
    """Launches in order. Inputs are copied into `crops`; results lie in `masks` and `classes`.

    crops (B, 3, S, S) fp32; masks (B, Q, s, s) in the format that the plan's last group takes, classes
    (B, Q, K + 1) in that of the class head. All stay where they are, so that a CUDA graph can hold the whole.
    Launches marked `side` may run at the same time as the others from launch `fork` to launch `join`.
    """

    def __init__(
        self,
        crops: Tensor,
        masks: Tensor,
        classes: Tensor,
        launches: tuple[Launch, ...],
        fork: int,
        join: int,
    ) -> None:
        self.crops, self.masks, self.classes = crops, masks, classes
        self.launches = launches
        self._side = [launch for launch in launches if launch.side]
        self._before, self._middle, self._after = (
            [launch for launch in part if not launch.side]
            for part in (launches[:fork], launches[fork:join], launches[join:])
        )
        self._stream = torch.cuda.Stream(crops.device) if crops.is_cuda else None

    @torch.inference_mode()
    def run(self, mark: Mark = lambda group: nullcontext()) -> tuple[Tensor, Tensor]:
        """Launch everything on the current stream; the small side branch beside the large one.

        Args:
            mark: gives a context manager that is entered around each group's launch, for profilers.
        """
        _run(self._before, mark)
        if self._stream is None:
            _run(self._side, mark)
            _run(self._middle, mark)
            _run(self._after, mark)
        else:
            current = torch.cuda.current_stream(self.crops.device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                _run(self._side, mark, joins=True)
            _run(self._middle, mark)
            current.wait_stream(self._stream)
            _run(self._after, mark, joins=True)
        return self.masks, self.classes


def _run(launches: list[Launch], mark: Mark, *, joins: bool = False) -> None:
    """`joins`: the first one follows what other streams do."""
    for number, launch in enumerate(launches):
        with mark(launch.group), ordinary_launches() if joins and number == 0 else nullcontext():
            launch.run()
