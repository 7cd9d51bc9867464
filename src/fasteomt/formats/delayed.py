"""Delayed scales: what earlier tensors at a site say about the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.formats.recipe import Delayed


class DelayedAmax:
    """`history`: largest magnitudes of the last tensors at one site, newest first; (source.history,) fp32.

    All in place and without a synchronisation, so that a CUDA graph can hold it.
    """

    def __init__(self, source: Delayed, device: torch.device | None = None) -> None:
        self.source = source
        self.history = torch.zeros(source.history, dtype=torch.float32, device=device)

    def use(self, amax: Tensor) -> Tensor:
        """() fp32: the amax to scale a tensor by. Its own, `amax` (one fp32 value), is then recorded.

        It is the largest in the history times the headroom; as long as that holds nothing but zeros, `amax`
        itself. A NaN or an infinity is recorded as 0: it says nothing about later tensors.
        """
        own = amax.reshape(()).float()
        known = self.history.amax()
        chosen = torch.where(known > 0, known * self.source.headroom, own)
        self.history.copy_(self.history.roll(1))
        self.history[0] = torch.where(own.isfinite(), own, 0.0)
        return chosen

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the history, to be saved."""
        return {"history": self.history.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a saved history.

        Raises:
            InputError: not a history of this length.
        """
        history = state.get("history")
        if history is None or history.shape != self.history.shape:
            found = "none" if history is None else str(tuple(history.shape))
            raise InputError(f"delayed scales: history {found}: one of ({self.source.history},) is needed")
        self.history.copy_(history)
