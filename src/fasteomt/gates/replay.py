"""Gate G: the replay of a captured graph equals eager execution of the same plan, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.errors import InputError

Outputs = Sequence[Tensor]


@dataclass(frozen=True)
class ReplayCheck:
    """`differing`: values of all replays that differ from eager ones in any bit; `first`: the replay (from 0)
    that had the first of them, None if there is none; `unrepeatable`: values that differ when eager execution
    is repeated, which makes the comparison worthless."""

    inputs: int
    replays: int
    differing: int
    first: int | None
    unrepeatable: int

    def values(self) -> dict[str, float]:
        return {
            "differing_values": self.differing,
            "eager_differing_values": self.unrepeatable,
            "inputs": self.inputs,
            "replays": self.replays,
        }


def check_replay(
    eager: Callable[[Tensor], Outputs], replay: Callable[[Tensor], Outputs], inputs: Sequence[Tensor]
) -> ReplayCheck:
    """Compare replays with eager execution, over changing inputs and back to the first.

    All of eager runs before the first replay, and what it gave is kept in host memory: a buffer that both use
    could otherwise hand the right answer to a replay that never read its input. Returning to the first input
    finds a result that is carried over from the replay before.

    Args:
        inputs: of one shape and dtype, at least two.

    Raises:
        InputError: fewer than two inputs, or two neighbours give equal outputs, so that nothing stale would
            show; or outputs of different number, shape or dtype.
    """
    order = [*range(len(inputs)), 0]
    if len(inputs) < 2:
        raise InputError("gate G: needs at least two inputs")
    expected = [_kept(eager(one)) for one in inputs]
    unrepeatable = _differing(expected[0], _kept(eager(inputs[0])))
    for this, following in itertools.pairwise(order):
        if not _differing(expected[this], expected[following]):
            raise InputError(
                f"gate G: inputs {this} and {following} give equal outputs, a stale one wouldn't show: "
                "take other inputs"
            )
    counts = [_differing(expected[which], _kept(replay(inputs[which]))) for which in order]
    first = next((place for place, count in enumerate(counts) if count), None)
    return ReplayCheck(len(inputs), len(order), sum(counts), first, unrepeatable)


def captured(function: Callable[[Tensor], Outputs], example: Tensor) -> Callable[[Tensor], Outputs]:
    """`function` as one CUDA graph, for inputs of the example's shape, dtype and device.

    The graph reads and writes the same memory at each replay: use a result before the next call.

    Raises:
        UnsupportedError: it can't be captured.
    """
    static = example.clone()
    with torch.cuda.device(example.device):
        graph = capture(lambda: function(static))

    def replay(one: Tensor) -> Outputs:
        static.copy_(one)
        return graph.replay()

    return replay


def different_inputs(crops: Tensor, seed: int = 0) -> list[Tensor]:
    """The crops (B, 3, S, S), mirrored crops, and noise of their shape: three inputs for `check_replay`."""
    noise = torch.randn(crops.shape, generator=torch.Generator().manual_seed(seed))
    return [crops, crops.flip(-1), noise.to(crops)]


def _kept(outputs: Outputs) -> list[Tensor]:
    return [one.detach().to("cpu", copy=True).contiguous() for one in outputs]


def _differing(expected: list[Tensor], found: list[Tensor]) -> int:
    """Values that differ in any bit; -0 differs from 0, and a NaN equals itself."""
    if len(expected) != len(found):
        raise InputError(f"gate G: a replay gives {len(found)} outputs, eager execution {len(expected)}")
    total = 0
    for x, y in zip(expected, found, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            raise InputError(
                f"gate G: a replay gives {tuple(y.shape)} {y.dtype}, "
                f"eager execution {tuple(x.shape)} {x.dtype}"
            )
        bits = [one.flatten().view(torch.uint8).view(one.numel(), one.element_size()) for one in (x, y)]
        total += int((bits[0] != bits[1]).any(dim=1).sum())
    return total
