"""Gate G with fake graphs, each with a fault that real ones have had; with a real one on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.gates.limits import broken, load_limits
from fasteomt.gates.replay import ReplayCheck, captured, check_replay, different_inputs

Function = Callable[[Tensor], Sequence[Tensor]]
INPUTS = different_inputs(torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))


def eager(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(dim=1), (x * 3).half()


def check(replay: Function, function: Function = eager) -> ReplayCheck:
    return check_replay(function, replay, INPUTS)


def passes(found: ReplayCheck) -> bool:
    return not broken(found.values(), load_limits().tiers[0].of("G", truth=False))


def test_equal_replays_pass() -> None:
    found = check(eager)
    assert found == ReplayCheck(inputs=3, replays=4, differing=0, first=None, unrepeatable=0)
    assert passes(found)


def test_outputs_in_one_buffer_that_is_used_again_pass() -> None:
    buffers = [torch.empty_like(one) for one in eager(INPUTS[0])]

    def replay(x: Tensor) -> list[Tensor]:
        for buffer, one in zip(buffers, eager(x), strict=True):
            buffer.copy_(one)
        return buffers

    assert passes(check(replay))


def test_the_result_of_the_replay_before_fails() -> None:
    last = eager(INPUTS[0])

    def replay(x: Tensor) -> Sequence[Tensor]:
        nonlocal last
        before, last = last, eager(x)
        return before

    found = check(replay)
    assert (found.first, passes(found)) == (1, False)


def test_an_input_that_is_never_copied_in_fails() -> None:
    """It always computes the input of the capture: right at the first replay and at the last."""
    found = check(lambda x: eager(INPUTS[0]))
    assert (found.first, passes(found)) == (1, False)


def test_an_input_buffer_that_eager_fills_does_not_hide_it() -> None:
    """Eager execution and replay share a buffer, and the replay doesn't fill it."""
    static = torch.zeros_like(INPUTS[0])

    def fills(x: Tensor) -> Sequence[Tensor]:
        static.copy_(x)
        return eager(static)

    assert not passes(check(lambda x: eager(static), fills))


def test_a_carried_over_sum_fails_only_when_an_input_returns() -> None:
    """The first three replays are right; the buffer that is added to was never cleared after that."""
    calls = 0

    def replay(x: Tensor) -> Sequence[Tensor]:
        nonlocal calls
        calls += 1
        return eager(x) if calls <= 3 else [one + 1 for one in eager(x)]

    found = check(replay)
    assert (found.first, passes(found)) == (3, False)


@pytest.mark.parametrize("change", ["one bit", "sign of zero"])
def test_bit_for_bit(change: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        out = x.clone()
        out[0, 0, 0, 0] = 0.0
        return [out]

    def replay(x: Tensor) -> list[Tensor]:
        (out,) = function(x)
        if change == "one bit":
            out[1, 2, 7, 7] = torch.nextafter(out[1, 2, 7, 7], torch.tensor(math.inf))
        else:
            out[0, 0, 0, 0] = -0.0
        return [out]

    found = check(replay, function)
    assert (found.differing, found.first) == (4, 0)


def test_the_same_nan_is_equal() -> None:
    def function(x: Tensor) -> list[Tensor]:
        out = x.clone()
        out[0] = math.nan
        return [out]

    assert passes(check(function, function))


def test_eager_execution_that_does_not_repeat_itself_fails() -> None:
    calls = 0

    def function(x: Tensor) -> list[Tensor]:
        nonlocal calls
        calls += 1
        return [x + calls // 4]

    found = check(lambda x: [x], function)
    assert (found.differing, passes(found)) == (0, False)
    assert found.unrepeatable > 0


def test_inputs_that_show_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="at least two inputs"):
        check_replay(eager, eager, INPUTS[:1])
    with pytest.raises(InputError, match="inputs 0 and 1 give equal outputs"):
        check_replay(eager, eager, [INPUTS[0], INPUTS[0].clone(), INPUTS[2]])
    with pytest.raises(InputError, match="equal outputs"):
        check(lambda x: [torch.ones(3)], lambda x: [torch.ones(3)])


def test_outputs_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="gives 1 outputs, eager execution 2"):
        check(lambda x: eager(x)[:1])
    with pytest.raises(InputError, match=r"torch\.float32, eager execution"):
        check(lambda x: [one.float() for one in eager(x)])


@pytest.mark.gpu
def test_a_real_graph() -> None:
    weight = torch.randn(8, 8, device="cuda")
    inputs = [one.cuda() for one in INPUTS]

    def function(x: Tensor) -> list[Tensor]:
        return [(x @ weight).relu(), x.softmax(dim=-1)]

    replay = captured(function, inputs[0])
    assert passes(check_replay(function, replay, inputs))
    weight.mul_(2)  # the graph reads the weight where it lies: it must follow
    assert passes(check_replay(function, replay, inputs))
    stale = captured(lambda x: function(inputs[0]), inputs[0])
    assert not passes(check_replay(function, stale, inputs))
