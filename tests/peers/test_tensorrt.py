"""What Torch-TensorRT is asked for; the package itself is too large for most test machines."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fasteomt.errors import UnsupportedError
from fasteomt.peers.tensorrt import tensorrt


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, x


def test_an_engine_of_the_whole_network_with_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def compile_(exported: torch.export.ExportedProgram, **settings: Any) -> nn.Module:
        asked.update(settings)
        return exported.module()

    package = ModuleType("torch_tensorrt")
    package.dynamo = SimpleNamespace(compile=compile_)  # type: ignore[attr-defined]
    package.runtime = SimpleNamespace(set_cudagraphs_mode=lambda on: asked.update(graphs=on))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_tensorrt", package)
    crops = torch.ones(2, 3)
    assert torch.equal(tensorrt(Doubling(), crops)(crops)[0], 2 * crops)
    assert asked["require_full_compilation"] and asked["use_explicit_typing"] and asked["graphs"]


def test_its_absence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="'torch_tensorrt' is not installed"):
        tensorrt(Doubling(), torch.ones(2, 3))
