"""Whole gates on small models: what is right passes, and each planted fault fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from gate_samples import clip_model, write_images
from torch import Tensor

from fasteomt.checkpoint import Checkpoint, resolve
from fasteomt.engine import Engine
from fasteomt.errors import InputError
from fasteomt.gates import footage, run
from fasteomt.gates.footage import Footage, open_footage
from fasteomt.gates.limits import load_limits
from fasteomt.gates.picture import WorstFrames
from fasteomt.gates.verdict import Report
from fasteomt.model import reference
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.predictor import Predictor
from fasteomt.stacks import get_stack
from fasteomt.video import VideoWriter

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(small_spec: ModelSpec) -> Checkpoint:
    return clip_model(small_spec)


@pytest.fixture
def clip(tmp_path: Path) -> Footage:
    return open_footage(write_images(tmp_path / "clip"))


def judged(checkpoint: Checkpoint, clip: Footage, gates: str = "MH", stack: str = "fp32") -> Report:
    return run.run_gates(checkpoint, get_stack(stack), CPU, clip, tuple(gates))


def plant(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Engine], None]) -> None:
    """Break every engine but the first, which is the reference's."""
    build, built = Engine.__init__, []

    def init(self: Engine, spec: ModelSpec, weights: dict[str, Tensor], *rest: object) -> None:
        build(self, spec, {name: value.clone() for name, value in weights.items()}, *rest)  # type: ignore[arg-type]
        built.append(self)
        if len(built) > 1:
            fault(self)

    monkeypatch.setattr(Engine, "__init__", init)


def failed(report: Report) -> set[str]:
    return {verdict.gate for verdict in report.failed}


def test_fp32_against_itself(checkpoint: Checkpoint, clip: Footage) -> None:
    """Bit for bit, the model with injected outliers too, since their factor is a power of two."""
    report = judged(checkpoint, clip, "MHGO")
    verdicts = {verdict.gate: verdict for verdict in report.verdicts}
    assert list(verdicts) == ["M", "H", "G", "O"]
    assert [verdicts[gate].passed for gate in "MHGO"] == [True, True, None, True]
    assert verdicts["G"].not_run == "cpu has no CUDA graphs"
    for gate in "MO":
        assert verdicts[gate].values["cosine"] == pytest.approx(1, abs=1e-12)
        assert verdicts[gate].values["iou"] == 1
    for gate in "HO":
        assert verdicts[gate].values["pooled_iou"] == 1
        assert verdicts[gate].values["confidence_error_percent"] == 0
        assert verdicts[gate].values["frames"] == 8
    assert verdicts["M"].values["mask_classes"] == verdicts["H"].values["classes"] == 2
    assert (report.frames, report.width, report.height) == (8, 96, 64)
    subject = report.subject
    assert (subject.checkpoint, subject.clip, subject.truth) == (checkpoint.sha256, clip.sha256, None)
    assert subject.plan == get_stack("fp32").plan(checkpoint.spec, target.CPU).hash


def _weight_doubled(name: str) -> Callable[[Engine], None]:
    def fault(engine: Engine) -> None:
        engine.model.get_parameter(name).mul_(2)

    return fault


def _bias_dropped(name: str) -> Callable[[Engine], None]:
    def fault(engine: Engine) -> None:
        engine.model.get_parameter(name).zero_()

    return fault


def _rope_off_by_one_row(engine: Engine) -> None:
    logits, tables = engine.logits, reference.rope_tables

    def rolled(periods: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
        return tuple(table.roll(width, dims=0) for table in tables(periods, height, width))

    def wrong(crops: Tensor) -> tuple[Tensor, Tensor]:
        with mock.patch.object(reference, "rope_tables", rolled):
            return logits(crops)

    engine.logits = wrong  # type: ignore[method-assign]


def _stale_result(engine: Engine) -> None:
    """What `logits` gives is the result of the call before, as from a buffer that is read too early."""
    logits, last = engine.logits, []

    def wrong(crops: Tensor) -> tuple[Tensor, Tensor]:
        last.append(logits(crops))
        return last[-2] if len(last) > 1 else last[-1]

    engine.logits = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(_weight_doubled("backbone.blocks.1.attn.qkv.weight"), id="qkv x 2"),
        pytest.param(_weight_doubled("backbone.blocks.0.mlp.fc2.weight"), id="fc2 x 2"),
        pytest.param(_weight_doubled("mask_head.2.weight"), id="mask head x 2"),
        pytest.param(_bias_dropped("mask_head.0.bias"), id="mask head's first bias"),
        pytest.param(_bias_dropped("mask_head.4.bias"), id="mask head's last bias"),
        pytest.param(_bias_dropped("class_head.bias"), id="class head's bias"),
        pytest.param(_rope_off_by_one_row, id="rope"),
        pytest.param(_stale_result, id="stale"),
    ],
)
def test_planted_faults_fail(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, clip: Footage, fault: Callable[[Engine], None]
) -> None:
    plant(monkeypatch, fault)
    report = judged(checkpoint, clip)
    assert failed(report), [(verdict.gate, verdict.values) for verdict in report.verdicts]


def test_a_fault_that_outliers_alone_show(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, clip: Footage
) -> None:
    """Activations clamped at 30, as by too small a scale: nothing in the model reaches it by itself."""

    def clamped(engine: Engine) -> None:
        for block in engine.model.backbone.blocks:
            block.norm1.register_forward_hook(lambda _, __, out: out.clamp(-30, 30))

    plant(monkeypatch, clamped)
    assert failed(judged(checkpoint, clip, "MHO")) == {"O"}


def test_no_number_fails(monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, clip: Footage) -> None:
    def overflowing(engine: Engine) -> None:
        engine.model.get_parameter("mask_head.4.bias").fill_(torch.inf)

    plant(monkeypatch, overflowing)
    assert failed(judged(checkpoint, clip)) == {"M", "H"}


def test_true_masks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Checkpoint, clip: Footage
) -> None:
    """The truth is what the reference predicts: it loses nothing, a faulty stack does."""
    predictor = Predictor(checkpoint, stack=get_stack("fp32"), device=CPU)
    path = tmp_path / "masks.mkv"
    with VideoWriter(path, width=96, height=64, fps=25, codec="ffv1") as masks:
        for frame, _ in clip.frames():
            masks.write(predictor.predict_rgb(frame.rgb).mask, frame.index / 25)
    clip = open_footage(clip.source.location, path)
    (right,) = judged(checkpoint, clip, "H").verdicts
    assert right.passed
    assert right.subject.truth == clip.truth_sha256 is not None
    assert (right.values["truth_iou_lost_points"], right.values["truth_iou"]) == (0, 1)
    assert right.limits["max_truth_iou_lost_points"] == 0.3
    plant(monkeypatch, _weight_doubled("mask_head.2.weight"))
    (wrong,) = judged(checkpoint, clip, "H").verdicts
    assert wrong.values["truth_iou_lost_points"] == pytest.approx(100 * (1 - wrong.values["pooled_iou"]))
    assert any(text.startswith("truth_iou_lost_points") for text in wrong.broken)


def test_shipped_model_in_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trained model, in arithmetic that differs from fp32 in every layer, keeps gate H's 16-bit limits."""
    for name, value in (("WIDTH", 256), ("HEIGHT", 256), ("FRAMES", 3)):
        monkeypatch.setattr(footage, name, value)
    checkpoint = resolve("heads-vitt16")
    (verdict,) = judged(checkpoint, footage.make_footage(tmp_path, checkpoint.spec), "H", "bf16").verdicts
    assert verdict.passed
    assert set(verdict.limits) == set(load_limits().tiers[0].clip)
    assert verdict.values["pooled_iou"] < 1
    assert verdict.values["truth_iou"] > 0.9


def test_gates_are_chosen(checkpoint: Checkpoint, clip: Footage) -> None:
    assert [one.gate for one in judged(checkpoint, clip, "HM").verdicts] == ["M", "H"]
    assert [one.gate for one in judged(checkpoint, clip, "G").verdicts] == ["G"]
    for gates in ("", "MX"):
        with pytest.raises(InputError, match="choose among M, H, G, O"):
            judged(checkpoint, clip, gates)


def test_every_frame_is_read_once_and_told(checkpoint: Checkpoint, clip: Footage) -> None:
    done: list[int] = []
    worst = WorstFrames(checkpoint.spec.names)
    run.run_gates(checkpoint, get_stack("fp32"), CPU, clip, ("H",), worst=worst, progress=done.append)
    assert done == list(range(1, 9))
    assert worst.draw().size[0] == 1920


@pytest.mark.gpu
def test_graph_on_a_gpu(small_spec: ModelSpec, clip: Footage) -> None:
    checkpoint = clip_model(replace(small_spec, num_heads=1))  # kernels want heads of 64 features
    for stack in ("fp32", "bf16", "fp16"):
        report = run.run_gates(checkpoint, get_stack(stack), torch.device("cuda", 0), clip, ("G",))
        (verdict,) = report.verdicts
        assert verdict.passed, (stack, verdict)
