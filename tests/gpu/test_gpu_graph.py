"""A replay computes what the call computes, on whatever its inputs hold by then."""

from __future__ import annotations

import gc

import pytest
import torch

from fasteomt.engine.graph import capture

pytestmark = pytest.mark.gpu


def test_a_replay_equals_the_call_on_new_inputs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        replay = capture(lambda: model(x))
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            replay.outputs.fill_(float("nan"))
            assert torch.equal(replay.replay(), model(x))


def test_inputs_live_as_long_as_the_replay() -> None:
    def captured() -> tuple[object, torch.Tensor]:
        x = torch.randn(1024, device="cuda")
        return capture(lambda: x * 2), x.clone() * 2

    replay, expected = captured()
    gc.collect()
    filler = [torch.full((1024,), 7.0, device="cuda") for _ in range(64)]
    assert torch.equal(replay.replay(), expected)
    assert len(filler) == 64


def test_nothing_is_computed_while_capturing() -> None:
    counter = torch.zeros((), device="cuda")
    replay = capture(lambda: counter.add_(1), warmups=2)
    torch.cuda.synchronize()
    assert counter.item() == 2
    replay.replay()
    replay.replay()
    assert counter.item() == 4


def test_an_earlier_graph_in_the_garbage_does_not_spoil_a_capture() -> None:
    x = torch.ones(8, device="cuda")
    before = gc.get_threshold()
    garbage: list[object] = [capture(lambda: x + 1)]
    garbage.append(garbage)
    gc.disable()
    del garbage

    def call() -> torch.Tensor:
        makes_the_collector_come = [[number] for number in range(1000)]
        return x + len(makes_the_collector_come)

    gc.set_threshold(10)
    gc.enable()
    try:
        assert capture(call).replay()[0].item() == 1001
    finally:
        gc.set_threshold(*before)
