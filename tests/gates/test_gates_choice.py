"""`auto`: what has passed all its gates, fastest first; what hasn't is said to be unverified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gate_samples import subject

from fasteomt.checkpoint import Checkpoint
from fasteomt.gates import choice, store
from fasteomt.gates.limits import load_limits
from fasteomt.gates.verdict import Report, Verdict
from fasteomt.ops.target import Target
from fasteomt.stacks import get_stack

GPU = torch.device("cuda", 0)
SUBJECT = subject()
SM_90 = Target.named("sm_90")
GOOD = {
    "M": {"cosine": 1.0, "iou": 1.0},
    "H": {"pooled_iou": 1.0, "confidence_error_percent": 0.0},
    "G": {"differing_values": 0, "eager_differing_values": 0},
    "O": {"cosine": 1.0, "iou": 1.0, "pooled_iou": 1.0, "confidence_error_percent": 0.0},
}


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path))
    monkeypatch.setattr(choice, "hardware_name", lambda _: SUBJECT.gpu)
    monkeypatch.setattr(choice.Target, "of", lambda _: SM_90)
    monkeypatch.setattr(store, "source_digest", lambda: SUBJECT.source)


def keep(checkpoint: Checkpoint, name: str, clip: str = "c" * 64, **values: dict) -> None:
    plan = get_stack(name).plan(checkpoint.spec, SM_90)
    about = replace(SUBJECT, checkpoint=checkpoint.sha256, plan=plan.hash, clip=clip, truth=None)
    tier = load_limits().tier(plan)
    verdicts = tuple(
        Verdict(gate, about, GOOD[gate] | values.get(gate, {}), tier.of(gate, truth=False)) for gate in GOOD
    )
    store.save_report(Report(about, plan, verdicts, {}, 8, 96, 64))


def test_nothing_checked_is_unverified(small_checkpoint: Checkpoint) -> None:
    stack, note = choice.choose_stack(small_checkpoint, GPU)
    assert stack.name == "bf16"
    assert note is not None and "unverified" in note and "fasteomt gate --model" in note


def test_the_fastest_that_passed(small_checkpoint: Checkpoint) -> None:
    keep(small_checkpoint, "bf16")
    assert choice.choose_stack(small_checkpoint, GPU) == (get_stack("bf16"), None)
    keep(small_checkpoint, "fp16")
    assert choice.choose_stack(small_checkpoint, GPU) == (get_stack("fp16"), None)


def test_one_failed_gate_is_enough_to_pass_it_over(small_checkpoint: Checkpoint) -> None:
    keep(small_checkpoint, "fp16", H={"pooled_iou": 0.5})
    keep(small_checkpoint, "bf16")
    assert choice.choose_stack(small_checkpoint, GPU)[0].name == "bf16"


def test_gates_of_two_clips_do_not_add_up(small_checkpoint: Checkpoint) -> None:
    keep(small_checkpoint, "fp16", clip="1" * 64, H={"pooled_iou": 0.5})
    keep(small_checkpoint, "fp16", clip="2" * 64, G={"differing_values": 3})
    assert choice.choose_stack(small_checkpoint, GPU)[1] is not None


def test_a_cpu_takes_fp32(small_checkpoint: Checkpoint) -> None:
    assert choice.choose_stack(small_checkpoint, torch.device("cpu")) == (get_stack("fp32"), None)
