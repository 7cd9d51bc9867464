"""The tuner on a real GPU: every implementation is compiled, checked and timed in CUDA graphs."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.bench.kernel_cases import Choice, Job, check, time_choices
from fasteomt.bench.tune import choices_of, table_from, tune
from fasteomt.ops import attention, depthwise_masks, linear
from fasteomt.ops.grid import Grid
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
ROWS = Rows(2, 256, 5)
JOBS = {
    "gelu": Job("linear", linear.Problem(ROWS.total, 768, 256, torch.float16, "gelu"), ROWS),
    "rope": Job("linear", linear.Problem(ROWS.total, 768, 256, torch.bfloat16, "rope", 64), ROWS),
    "residual": Job("linear", linear.Problem(ROWS.total, 256, 768, torch.bfloat16, "residual"), ROWS),
    "attention": Job("attention", attention.Problem(ROWS, 4, 64, torch.bfloat16), ROWS),
    "masks": Job(
        "depthwise_masks",
        depthwise_masks.Problem(Grid(2, 8, 2), 100, 256, torch.bfloat16, torch.float32),
        None,
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_first_guesses_are_right_and_timed(name: str) -> None:
    job = JOBS[name]
    choices = choices_of(job, Target.of(GPU), 1)
    assert choices
    assert {choice.name: check(job, choice, GPU) for choice in choices} == {c.name: None for c in choices}
    times, failures = time_choices(job, choices, GPU, 0.005)
    assert not failures
    assert all(1e-7 < seconds < 1e-2 for seconds in times.values())


def test_the_whole_goes_through_processes_of_its_own() -> None:
    findings = tune(list(JOBS.values()), GPU, most=1, seconds=0.005, workers=2)
    table = table_from(findings, GPU)
    assert {entry.problem for entry in table.entries if entry.op == "attention"}
    assert len({(entry.op, entry.problem) for entry in table.entries}) == len(JOBS)


def test_a_device_that_is_lost_costs_its_process_alone() -> None:
    from fasteomt.bench.worker import Worker, WorkerLost

    worker = Worker()
    try:
        with pytest.raises(WorkerLost):
            worker.ask(60, os._exit, 3)
        job = JOBS["gelu"]
        assert worker.ask(120, check, job, Choice("library"), GPU) is None
    finally:
        worker.close()
