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
