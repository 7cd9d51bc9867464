"""The state of delayed scales moves with use alone, and can be saved."""

from __future__ import annotations

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.formats.delayed import DelayedAmax
from fasteomt.formats.quantise import quantise
from fasteomt.formats.recipe import Delayed, Fp8, NvFp4


def amax(value: float) -> torch.Tensor:
    return torch.tensor(value)


def test_the_scale_lags_one_tensor_behind() -> None:
    state = DelayedAmax(Delayed(history=3, headroom=1.5))
    used = [float(state.use(amax(value))) for value in (4.0, 2.0, 8.0, 1.0, 1.0, 1.0, 1.0)]
    # The first by its own; then the largest of the last three, times the headroom.
    assert used == [4.0, 6.0, 6.0, 12.0, 12.0, 12.0, 1.5]
    assert state.history.tolist() == [1.0, 1.0, 1.0]


def test_zeros_and_bad_values_are_not_learnt_from() -> None:
    state = DelayedAmax(Delayed(history=2, headroom=2.0))
    assert float(state.use(amax(0.0))) == 0.0
    assert float(state.use(amax(3.0))) == 3.0
    assert float(state.use(amax(torch.nan))) == 6.0
    assert float(state.use(amax(torch.inf))) == 6.0
    assert state.history.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [Fp8, NvFp4])
def test_quantising_moves_the_history_and_only_that(kind: type[Fp8] | type[NvFp4]) -> None:
    recipe = kind(source=Delayed(history=2, headroom=1.0))
    state = DelayedAmax(recipe.source)
    x = torch.linspace(-1, 1, 64).view(2, 32)
    first = quantise(x, recipe, state)
    assert state.history.tolist() == [1.0, 0.0]
    saved = state.state_dict()
    assert quantise(x * 4, recipe, state).saturated > 0  # by the scale of the tensor before
    assert quantise(x * 4, recipe, state).saturated == 0
    assert state.history.tolist() == [4.0, 4.0]

    state.load_state_dict(saved)
    assert state.history.tolist() == [1.0, 0.0]
    again = quantise(x, recipe, state)
    assert torch.equal(first.codes, again.codes) and torch.equal(first.scales, again.scales)
    assert saved["history"].tolist() == [1.0, 0.0]


def test_another_history_is_refused() -> None:
    state = DelayedAmax(Delayed(history=4))
    with pytest.raises(InputError, match=r"history \(3,\): one of \(4,\) is needed"):
        state.load_state_dict({"history": torch.zeros(3)})
    with pytest.raises(InputError, match="history none"):
        state.load_state_dict({})
