"""torch.compile around LightlyTrain's network: whole, and each peer on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fasteomt.checkpoint import random_checkpoint
from fasteomt.errors import UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.peers import compiled
from fasteomt.peers.compiled import compile_network, mode_options, require_toolchain


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, x


class Breaking(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        torch._dynamo.graph_break()
        return 2 * x, x


def test_upstreams_network_compiles_as_one_graph() -> None:
    pytest.importorskip("lightly_train", reason="needs the extra 'train'")
    from fasteomt.peers.network import load_network

    checkpoint = random_checkpoint(ModelSpec.from_name("vitt16", image_size=(64, 64), num_queries=8))
    network = load_network(checkpoint, torch.device("cpu"))
    crops = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = network(crops)
    for found, eager in zip(compile_network(network, backend="aot_eager")(crops), expected, strict=True):
        assert not found.requires_grad
        torch.testing.assert_close(found, eager, rtol=0, atol=0)


def test_a_graph_break_is_an_error() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compile_network(Breaking(), backend="eager")(torch.ones(2))


def test_many_peers_of_one_process_all_stay_compiled() -> None:
    """torch compiles one code object at most 8 times."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    calls = [compile_network(Doubling(), backend=backend) for _ in range(12)]  # type: ignore[arg-type]
    for _ in range(2):
        for size, call in enumerate(calls, start=2):
            assert torch.equal(call(torch.ones(size))[0], torch.full((size,), 2.0))
    assert len(graphs) == len(calls)


def test_modes_are_torchs_own_and_insist_on_cuda_graphs() -> None:
    pytest.importorskip("triton")
    for mode in ("reduce-overhead", "max-autotune"):
        options = mode_options(mode)
        assert options.pop("triton.cudagraph_or_error") is True
        assert options == torch._inductor.list_mode_options(mode) and options["triton.cudagraphs"]
        known = torch._inductor.list_options()
        assert {*options, "triton.cudagraph_or_error"} <= set(known)
    assert mode_options("max-autotune")["max_autotune"] is True


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled, "find_spec", lambda name: object())
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs a C compiler: install gcc"):
        require_toolchain()
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs the package triton"):
        require_toolchain()
