"""What tests of kernels in the interpreter share."""

from __future__ import annotations

from typing import Any

import pytest

from fasteomt.ops.target import Target


@pytest.fixture
def gpu_of_three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three programs, so that each takes several tiles; and what the interpreter lacks."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from fasteomt.ops.linear import fused_kernel

    def add(self: Any, kind: Any, desc: Any, value: Any, indices: Any) -> None:
        old = self.create_descriptor_load(desc, indices, None, None)
        self.create_descriptor_store(desc, TensorHandle(old.data + value.data, value.dtype), indices)

    def as_int(bound: Any) -> int:
        # Triton 3.6 does it in a way that NumPy 2.4 refuses.
        return int(bound.handle.data.item() if hasattr(bound, "handle") else bound)

    monkeypatch.setattr(InterpreterBuilder, "create_descriptor_reduce", add, raising=False)
    monkeypatch.setattr(fused_kernel, "range", lambda *bounds: range(*map(as_int, bounds)), raising=False)
    monkeypatch.setattr(Target, "of", lambda device: Target("sm_90", 232448, 3))
