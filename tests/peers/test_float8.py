"""Which layers torchao gets, and that none is left behind in silence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

from fasteomt.errors import UnsupportedError
from fasteomt.peers.float8 import quantise_linears


class Float8Tensor(torch.Tensor):
    """Stands for torchao's, which needs a GPU."""


class Config:
    def __init__(self, **settings: object) -> None:
        # torchao would otherwise set torch.compile up for the whole process.
        assert settings == {"set_inductor_config": False}


def torchao(leaves: str = "") -> ModuleType:
    """torchao.quantization as version 0.18 has it, as far as it is used; `leaves` one layer alone."""

    def quantize_(model: nn.Module, config: Config, filter_fn: Callable[[nn.Module, str], bool]) -> None:
        for name, module in model.named_modules():
            if filter_fn(module, name) and name != leaves:
                weight = module.get_parameter("weight").data.as_subclass(Float8Tensor)
                module.weight = nn.Parameter(weight, requires_grad=False)

    package = ModuleType("torchao.quantization")
    package.quantize_ = quantize_  # type: ignore[attr-defined]
    package.Float8DynamicActivationFloat8WeightConfig = Config  # type: ignore[attr-defined]
    package.Float8Tensor = Float8Tensor  # type: ignore[attr-defined]
    return package


@pytest.fixture
def network() -> nn.Module:
    """Two layers that FP8 takes, and a class head that it doesn't."""
    return nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 3), nn.LayerNorm(32))


def install(monkeypatch: pytest.MonkeyPatch, quantization: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao") if quantization else None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torchao.quantization", quantization)  # type: ignore[arg-type]


def test_linears_of_fitting_sizes_become_fp8(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, torchao())
    assert quantise_linears(network) == ["0", "1"]
    assert [isinstance(m.weight, Float8Tensor) for m in network] == [True, True, False, False]  # type: ignore[attr-defined]


def test_a_layer_left_behind_is_an_error(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, torchao(leaves="1"))
    with pytest.raises(UnsupportedError, match="left '1' unquantised"):
        quantise_linears(network)


def test_a_missing_or_other_torchao_is_named(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(UnsupportedError, match=r"'torchao.*' is not installed: run  pip install torchao=="):
        quantise_linears(network)
    install(monkeypatch, ModuleType("torchao.quantization"))
    with pytest.raises(UnsupportedError, match="has no quantize_, Float8Dynamic"):
        quantise_linears(network)
