"""Implementations against each other, made-up ones: what raises or is wrong is left out, the fastest wins."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fasteomt.bench import kernel_cases
from fasteomt.bench import tune as tuning
from fasteomt.bench.kernel_cases import Choice, Job, check, time_choices
from fasteomt.bench.kernel_checks import Finding, shares_of
from fasteomt.bench.tune import choices_of, jobs_of, table_from, tune
from fasteomt.bench.worker import CallFailed, WorkerLost
from fasteomt.engine.tuning import Table
from fasteomt.errors import InputError
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import attention, depthwise_masks, linear
from fasteomt.ops.grid import Grid
from fasteomt.ops.linear import library, reference
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import CPU, Target
from fasteomt.stacks import get_stack

DEVICE = torch.device("cpu")
ROWS = Rows(2, 4, 3)
GELU = Job("linear", linear.Problem(14, 32, 16, torch.bfloat16, "gelu"), ROWS)
ROPE = Job("linear", linear.Problem(14, 48, 16, torch.bfloat16, "rope", 16), ROWS)
RESIDUAL = Job("linear", linear.Problem(14, 32, 16, torch.bfloat16, "residual"), ROWS)
NORM = Job("linear", linear.Problem(14, 32, 16, torch.bfloat16, "norm"), ROWS)
HEAD = Job("linear", linear.Problem(14, 32, 16, torch.float16), None)
ATTENTION = Job("attention", attention.Problem(ROWS, 2, 16, torch.bfloat16), ROWS)


@dataclass(frozen=True)
class Config:
    delay_ms: int


def fake(run: Callable[..., Any], *, unsupported: str | None = None, **others: Any) -> SimpleNamespace:
    return SimpleNamespace(run=run, unsupported=lambda *_: unsupported, BIAS_DTYPE=torch.float32, **others)


def delayed(*arguments: Any, config: Config, **options: Any) -> None:
    time.sleep(config.delay_ms / 1e3)
    reference.run(*arguments, **options)


def wrong(*arguments: Any, **options: Any) -> None:
    """Forgets its last row."""
    reference.run(*arguments, **options)
    arguments[3][-1] = 0


def silent(*arguments: Any, **options: Any) -> None:
    """Writes nothing."""


def raising(*arguments: Any, **options: Any) -> None:
    raise RuntimeError("out of resources:\nshared memory")


FAKES = {
    "raising": fake(raising),
    "wrong": fake(wrong),
    "silent": fake(silent),
    "plain": fake(lambda *a, **o: delayed(*a, config=Config(15), **o)),
    "swift": fake(delayed, candidates=lambda *_: (Config(30), Config(0), Config(20), Config(9))),
    "elsewhere": fake(raising, unsupported="not on this one"),
}


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in FAKES.items():
        monkeypatch.setitem(sys.modules, f"fasteomt.ops.linear.{name}", module)
    monkeypatch.setattr(linear, "IMPLEMENTATIONS", ("reference", *FAKES))


class Here:
    """A worker that is this process. `hangs`: what it can't do."""

    def __init__(self, hangs: str = "") -> None:
        self.hangs, self.closed = hangs, False

    def ask(self, timeout_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
        if function is check and arguments[1].implementation == self.hangs:
            raise WorkerLost(f"no answer in {timeout_s:.0f} s")
        try:
            return function(*arguments)
        except Exception as error:
            raise CallFailed(str(error)) from None

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def run(*jobs: Job, **options: Any) -> list[Finding]:
    usual = {"most": 3, "seconds": 0.002, "workers": 2, "start": Here}
    return tune(jobs, DEVICE, **(usual | options))


@pytest.mark.usefixtures("race")
@pytest.mark.parametrize("job", [GELU, ROPE, RESIDUAL, NORM, HEAD])
def test_what_fails_is_told_and_left_out_and_the_fastest_wins(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        (found,) = run(job)
    assert [choice.name for choice, _ in found.ranked] == ["swift delay_ms=0", "plain"]
    assert {choice.implementation for choice in found.left_out} == {"raising", "wrong", "silent"}
    said = " | ".join(record.getMessage() for record in caplog.records)
    assert f"linear m=14,n={job.problem.n},k=16" in said
    assert "raising: 'RuntimeError: out of resources: shared memory'" in said
    assert "wrong: wrong: relative error" in said
    assert "elsewhere" not in said
    assert Choice("swift", Config(9)) not in found.choices  # beyond the candidates asked for


@pytest.mark.usefixtures("race")
def test_the_table_has_the_best_of_each_implementation(caplog: pytest.LogCaptureFixture) -> None:
    table = table_from(run(GELU, RESIDUAL), DEVICE)
    assert table.best("linear", GELU.problem) == ("swift", {"delay_ms": 0})
    assert table.best("linear", RESIDUAL.problem) == ("swift", {"delay_ms": 0})
    assert table.best("linear", HEAD.problem) is None
    assert table.config_for("linear", "plain", GELU.problem) is None
    assert {entry.implementation for entry in table.entries} == {"swift", "plain"}
    plain = next(entry for entry in table.entries if entry.implementation == "plain")
    assert 15_000 < plain.us < 1_000_000
    assert Table.from_json(json.dumps(asdict(table))) == table


@pytest.mark.usefixtures("race")
def test_what_hangs_costs_no_more_than_itself() -> None:
    workers: list[Here] = []

    def start() -> Here:
        workers.append(Here(hangs="swift"))
        return workers[-1]

    (found,) = run(GELU, start=start, most=4)
    assert [choice.name for choice, _ in found.ranked] == ["plain"]
    said = [reason for choice, reason in found.left_out.items() if choice.config]
    assert said == ["no answer in 45 s"] * 3 + ["not tried: others of 'swift' cost 3 processes"]
    assert len(workers) == 1  # no more than there are jobs
    assert workers[0].closed


@pytest.mark.usefixtures("race")
def test_what_fails_only_when_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = kernel_cases.estimate

    def fails(candidate: Any, *arguments: Any, **options: Any) -> float:
        if candidate.name == "plain":
            raise RuntimeError("can't be captured")
        return float(estimate(candidate, *arguments, **options))

    monkeypatch.setattr(kernel_cases, "estimate", fails)
    (found,) = run(GELU)
    assert [choice.implementation for choice, _ in found.ranked] == ["swift"]
    assert "captured" in found.left_out[Choice("plain")]


@pytest.mark.usefixtures("race")
def test_what_makes_timing_fail_as_a_whole_is_found_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measure, asked = kernel_cases.measure, []

    def fails(candidates: Any, *arguments: Any, **options: Any) -> Any:
        names = [candidate.name.split()[0] for candidate in candidates]
        asked.append(set(names))
        if "swift" in names:
            raise RuntimeError("illegal memory access")
        return measure(candidates, *arguments, **options)

    monkeypatch.setattr(kernel_cases, "measure", fails)
    findings = run(GELU, RESIDUAL)
    assert [[choice.name for choice, _ in one.ranked] for one in findings] == [["plain"], ["plain"]]
    assert asked == [{"swift", "plain"}, {"plain"}, {"swift"}, {"plain"}]
    assert "swift delay_ms=0: can't be timed: illegal memory access" in caplog.text


@pytest.mark.usefixtures("race")
def test_out_of_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Checks end at their share of the limit, with the first guesses done; the rest is told."""
    now = itertools.count()
    monkeypatch.setattr(tuning.time, "monotonic", lambda: float(next(now)))
    done: list[tuple[str, int, int]] = []
    findings = run(GELU, RESIDUAL, workers=1, limit_s=20, progress=lambda *each: done.append(each))
    assert "kernels were not tried" in caplog.text
    assert done[0][:2] == ("kernels compiled and checked", 1)
    tried = [{c.implementation for c in (*one.right, *one.left_out)} for one in findings]
    assert tried[0] == tried[1] >= {"raising", "wrong", "plain"}
    caplog.clear()
    now = itertools.count(0, 100)
    assert all(not one.seconds for one in run(GELU, RESIDUAL, limit_s=1))
    assert "problems were not timed" in caplog.text


@pytest.mark.usefixtures("race")
def test_interruption_closes_the_workers() -> None:
    workers: list[Here] = []

    class Interrupted(Here):
        def ask(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    def start() -> Here:
        workers.append(Interrupted())
        return workers[-1]

    with pytest.raises(KeyboardInterrupt):
        run(GELU, RESIDUAL, start=start)
    assert [worker.closed for worker in workers] == [True, True]


def test_what_nothing_can_check_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    turned = replace(ATTENTION, problem=replace(ATTENTION.problem, rope=True))
    assert run(turned) == []
    assert "can't be checked" in caplog.text


def test_what_this_machine_has_is_right_and_timed() -> None:
    """The shipped implementations, of which a CPU has one each, in a process of their own."""
    options = {"most": 3, "seconds": 0.002, "workers": 1}
    found = tune([HEAD, ATTENTION], DEVICE, **options)
    assert [[choice.name for choice, _ in one.ranked] for one in found] == [["library"], ["library"]]
    assert all(one.left_out == {} for one in found)


def test_weights_come_from_memory_and_wrong_attention_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()

    def spy(x: torch.Tensor, weight: torch.Tensor, *rest: Any, **options: Any) -> None:
        seen.add(weight.data_ptr())
        library.run(x, weight, *rest, **options)

    monkeypatch.setitem(sys.modules, "fasteomt.ops.linear.spy", fake(spy))
    sys.modules["fasteomt.ops.linear.spy"].BIAS_DTYPE = None
    monkeypatch.setattr(linear, "IMPLEMENTATIONS", ("reference", "library", "spy"))
    monkeypatch.setattr(kernel_cases, "rotations", lambda nbytes, l2: 5)
    assert time_choices(HEAD, [Choice("spy")], DEVICE, 0.002)[1] == {}
    assert len(seen) == 5

    def late(qkv: torch.Tensor, out: torch.Tensor, *rest: Any) -> torch.Tensor:
        return out.zero_()

    monkeypatch.setitem(sys.modules, "fasteomt.ops.attention.late", fake(late))
    monkeypatch.setattr(attention, "IMPLEMENTATIONS", ("reference", "library", "late"))
    assert "relative error 1" in str(check(ATTENTION, Choice("late"), DEVICE))


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_masks_are_checked_and_timed(monkeypatch: pytest.MonkeyPatch, out_dtype: torch.dtype) -> None:
    from fasteomt.ops.depthwise_masks import reference

    def upside_down(*arguments: Any, **options: Any) -> None:
        reference.run(*arguments, **options)
        out = arguments[5]
        out.copy_(out.flip(2))

    monkeypatch.setitem(sys.modules, "fasteomt.ops.depthwise_masks.upside_down", fake(upside_down))
    monkeypatch.setitem(sys.modules, "fasteomt.ops.depthwise_masks.plain", fake(reference.run))
    monkeypatch.setattr(depthwise_masks, "IMPLEMENTATIONS", ("reference", "plain", "upside_down"))
    problem = depthwise_masks.Problem(Grid(2, 2, 1), 3, 64, torch.bfloat16, out_dtype)
    (found,) = run(Job("depthwise_masks", problem, None))
    assert [choice.name for choice, _ in found.ranked] == ["plain"]
    assert [choice.name for choice in found.left_out] == ["upside_down"]


def test_jobs_are_the_problems_of_all_models_once() -> None:
    spec = ModelSpec.from_name("vitb16")
    bf16 = jobs_of([spec], [get_stack("bf16")], [2], CPU)
    sm_90 = Target.named("sm_90")
    stacks = [get_stack("bf16"), get_stack("r5_v1"), get_stack("fp16")]
    both = jobs_of([spec, spec], stacks, [2, 2], sm_90)
    one = jobs_of([spec], [get_stack("bf16")], [2], sm_90)
    masks = [job for job in both if job.op == "depthwise_masks"]
    # The head is FP16 in both stacks that have it in one kernel.
    assert [job for job in one if job.op == "depthwise_masks"] == masks
    grid = Grid(2, 32, 2)
    assert [job.problem for job in masks] == [
        depthwise_masks.Problem(grid, 100, 768, torch.float16, torch.float32)
    ]
    assert masks[0].flops == 2 * (9 + 100) * 2 * 128**2 * 768
    assert set(one) < set(both)
    assert len({(job.op, job.problem) for job in both}) == len(both)
    assert {job.problem.epilogue for job in one if job.op == "linear"} == {
        "",
        "gelu",
        "rope",
        "residual",
        "norm",
    }
    assert {job.problem.epilogue for job in bf16 if job.op == "linear"} == {"", "gelu"}
    rope = next(job for job in one if job.op == "linear" and job.problem.epilogue == "rope")
    assert rope.rows == Rows(2, 1024, 5)
    assert rope.flops == 2 * 2058 * 2304 * 768
    heads = next(job for job in one if job.op == "attention")
    assert heads.flops == 4 * 2 * 1029**2 * 768
    with pytest.raises(InputError, match="'fp32' is no program of kernels"):
        jobs_of([spec], [get_stack("fp32")], [2], sm_90)


def test_choices_are_all_that_a_gpu_has_with_as_many_configurations_as_asked_for() -> None:
    pytest.importorskip("triton")
    job = Job("linear", linear.Problem(2058, 4096, 1024, torch.bfloat16, "gelu"), Rows(2, 1024, 5))
    found = choices_of(job, Target.named("sm_90"), 2)
    names = [choice.implementation for choice in found if choice.implementation != "cute"]
    assert names == ["library", "fused", "fused", "cuda", "cuda"]
    assert len({choice.name for choice in found}) == len(found)


def test_workers_have_about_as_much_to_do_and_families_stay_together() -> None:
    jobs = [
        replace(GELU, problem=replace(GELU.problem, m=m, epilogue=kind))
        for m in (14, 28, 42) for kind in ("", "gelu", "residual")
    ]  # fmt: skip
    findings = [Finding(job, [Choice("library")] * 4) for job in jobs]
    shares = shares_of(findings, 3)
    assert [{one.job.problem.epilogue for one in share} for share in shares] == [{""}, {"gelu"}, {"residual"}]
    assert sorted(len(share) for share in shares_of(findings[:1], 3)) == [0, 0, 1]
    assert sum(map(len, shares_of([Finding(GELU, [])], 2))) == 1
