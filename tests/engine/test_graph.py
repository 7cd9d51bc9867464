"""What `capture` says where it can't; that it works is for a GPU to show (tests/gpu/test_gpu_graph.py)."""

from __future__ import annotations

import pytest
import torch

from fasteomt.engine.graph import capture
from fasteomt.errors import InputError, UnsupportedError


def test_a_call_must_have_run_before() -> None:
    with pytest.raises(InputError, match="0 warm-ups"):
        capture(lambda: None, warmups=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_nothing_runs() -> None:
    calls = []
    with pytest.raises(UnsupportedError, match="needs a CUDA device"):
        capture(lambda: calls.append(1))
    assert calls == []
