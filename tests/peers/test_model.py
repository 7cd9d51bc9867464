"""Baselines of the model segment do the reference model's work, in the arithmetic that their name says."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteomt.checkpoint import Checkpoint, random_checkpoint
from fasteomt.engine import Engine
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.peers import model as peers
from fasteomt.peers.model import PEERS, Baseline, load_peer
from fasteomt.peers.network import Network, load_network, require_weights
from fasteomt.stacks import STACKS

pytest.importorskip("lightly_train", reason="needs the extra 'train'")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return random_checkpoint(ModelSpec.from_name("vitt16", image_size=(64, 64), num_queries=8))


@pytest.fixture(scope="module")
def crops(checkpoint: Checkpoint) -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def truth(checkpoint: Checkpoint, crops: Tensor) -> tuple[Tensor, Tensor]:
    return Engine(checkpoint.spec, checkpoint.weights, STACKS["fp32"], CPU).logits(crops)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.float().cpu() - expected).norm() / expected.norm())


def plain_bf16(checkpoint: Checkpoint, crops: Tensor) -> tuple[Tensor, Tensor]:
    """The reference model's modules with bf16 weights, fp32 RoPE: what bf16 costs in plain torch."""
    model = Eomt(checkpoint.spec)
    model.load_state_dict(checkpoint.weights)
    periods = model.backbone.rope_embed.periods
    model.to(torch.bfloat16)
    model.backbone.rope_embed.periods = periods
    with torch.no_grad():
        out: tuple[Tensor, Tensor] = model(crops.to(torch.bfloat16))
    return out


def test_the_network_in_fp32_is_the_reference_model(
    checkpoint: Checkpoint, crops: Tensor, truth: tuple[Tensor, Tensor]
) -> None:
    network = load_network(checkpoint, CPU, torch.float32)
    with torch.no_grad():
        found = network(crops)
        upsampled, classes = network.model.forward_backend(crops)
    for ours, expected in zip(found, truth, strict=True):
        assert ours.shape == expected.shape and relative(ours, expected) < 1e-5
    # All of upstream's own inference call, but for the upsampling that ends it.
    torch.testing.assert_close(F.interpolate(found[0], (64, 64), mode="bilinear"), upsampled, rtol=0, atol=0)
    torch.testing.assert_close(found[1], classes, rtol=0, atol=0)


def test_eager_bf16_errs_as_bf16_does(
    checkpoint: Checkpoint, crops: Tensor, truth: tuple[Tensor, Tensor]
) -> None:
    peer = load_peer("eager_bf16", checkpoint, CPU, crops)
    assert peer.name == "eager_bf16" and peer.setup_s > 0
    plain = plain_bf16(checkpoint, crops)
    for found, same_dtypes, expected in zip(peer.call(crops), plain, truth, strict=True):
        assert found.dtype == torch.bfloat16 and found.is_inference() and not found.requires_grad
        # Below, and it wasn't bf16; above, and it did something else.
        assert 1e-3 < relative(found, expected) < 2 * relative(same_dtypes, expected)


def test_peers_take_only_what_they_were_loaded_for(checkpoint: Checkpoint, crops: Tensor) -> None:
    peer = load_peer("eager_bf16", checkpoint, CPU, crops)
    for other in (crops[:1], crops.to(torch.bfloat16), torch.zeros(2, 3, 32, 32)):
        with pytest.raises(InputError, match=r"loaded for crops \(2, 3, 64, 64\)"):
            peer.call(other)
        if other.shape != (1, 3, 64, 64):
            with pytest.raises(InputError, match="crops must be"):
                load_peer("eager_bf16", checkpoint, CPU, other)


def test_what_cannot_run_here_says_what_is_missing(checkpoint: Checkpoint, crops: Tensor) -> None:
    with pytest.raises(InputError, match="unknown baseline 'fastest': choose one of eager_bf16"):
        load_peer("fastest", checkpoint, CPU, crops)
    gpu_only = [name for name in PEERS if name != "eager_bf16"]
    assert gpu_only == [
        "graph_bf16",
        "compile_reduce_overhead",
        "compile_max_autotune",
        "torchao_fp8",
        "tensorrt",
    ]
    for name in gpu_only:
        with pytest.raises(UnsupportedError, match=f"'{name}' needs a CUDA device, not cpu"):
            load_peer(name, checkpoint, CPU, crops)


def test_a_layer_left_in_fp32_is_refused(checkpoint: Checkpoint) -> None:
    network = load_network(checkpoint, CPU)
    linears = {m.weight.dtype for m in network.modules() if isinstance(m, nn.Linear)}
    assert linears == {torch.bfloat16}
    assert network.model.backbone.rope_embed.periods.dtype == torch.float32
    network.model.class_head.float()
    with pytest.raises(UnsupportedError, match=r"class_head\.weight' is torch\.float32"):
        require_weights(network, torch.bfloat16)


Break = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda masks, classes: (masks.float(), classes), "float32"),
        (lambda masks, classes: (masks[:1], classes), r"\(1, 8, 16, 16\)"),
        (lambda masks, classes: (masks / 0 * 0, classes), "not finite"),
    ],
)
def test_a_peer_with_other_outputs_is_refused(
    checkpoint: Checkpoint, crops: Tensor, monkeypatch: pytest.MonkeyPatch, fault: Break, said: str
) -> None:
    def prepare(network: Network, crops: Tensor) -> peers.Call:
        return torch.no_grad()(lambda x: fault(*network(x)))

    monkeypatch.setitem(PEERS, "broken", Baseline("wrong", prepare, cuda=False))
    with pytest.raises(UnsupportedError, match=said):
        load_peer("broken", checkpoint, CPU, crops)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(PEERS))
def test_every_peer_on_a_gpu_does_the_same_work(name: str, checkpoint: Checkpoint) -> None:
    """The FP8 ones err more; all give fresh outputs for fresh inputs."""
    spec = replace(checkpoint.spec, image_size=(128, 128))
    larger = replace(checkpoint, spec=spec)
    device = torch.device("cuda", 0)
    first, second = torch.randn(2, 2, 3, 128, 128, device=device)
    try:
        peer = load_peer(name, larger, device, first)
    except UnsupportedError as error:
        pytest.skip(str(error))
    call = peer.call
    # Weights that nobody holds any more would be overwritten here.
    del peer
    gc.collect()
    torch.cuda.empty_cache()
    filled = torch.full((64 << 20,), float("nan"), device=device)
    engine = Engine(spec, checkpoint.weights, STACKS["fp32"], device)
    for inputs in (first, second, first):
        plain = plain_bf16(larger, inputs.cpu())
        found = [x.clone() for x in call(inputs)]
        assert bool(filled.isnan().all())
        for mine, same_dtypes, expected in zip(found, plain, engine.logits(inputs), strict=True):
            # E4M3 has 4 fewer bits of mantissa than bf16.
            allowed = 2 * relative(same_dtypes, expected.cpu()) * (16 if name == "torchao_fp8" else 1)
            assert 1e-3 < relative(mine, expected.cpu()) < allowed
