"""Every implementation of an op in every configuration against the others, at the shapes that models have.

First all are compiled and checked, in several processes at a time; then what is right is timed, one problem
after the other, in the process that has it compiled.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module

import torch

from fasteomt.bench.kernel_cases import Choice, Job, time_choices, without_oracle
from fasteomt.bench.kernel_checks import Asker, Checks, Finding, Progress, shares_of
from fasteomt.bench.worker import CallFailed, Worker
from fasteomt.capabilities import hardware_name, installed_version
from fasteomt.engine.asked import asked
from fasteomt.engine.tuning import Entry, Table
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import implementation
from fasteomt.ops.target import Target
from fasteomt.stacks import Stack

logger = logging.getLogger(__name__)

OPS = ("linear", "attention", "depthwise_masks")
_ORACLE = "reference"
_TIME_S = 45.0  # the longest that one problem's timing may take
_SHARE_OF_CHECKS = 0.6  # of a limited time
_MOST_WORKERS, _BYTES_OF_A_WORKER = 12, 4 << 30


def jobs_of(
    specs: Iterable[ModelSpec], stacks: Iterable[Stack], crops: Iterable[int], target: Target
) -> list[Job]:
    """What the models ask of the ops that are raced, each problem once.

    Raises:
        InputError: a stack that is no program of kernels.
    """
    found: dict[Job, None] = {}
    stacks, crops = list(stacks), list(crops)
    for spec in specs:
        for stack in stacks:
            if stack.recipe == "fp32":
                raise InputError(f"stack '{stack.name}' is no program of kernels: choose another")
            plan = stack.plan(spec, target, Table())
            for count in crops:
                for one in asked(spec, plan, count):
                    if one.op in OPS:
                        found[Job(one.op, one.problem, one.rows)] = None
    return list(found)


def choices_of(job: Job, target: Target, most: int) -> list[Choice]:
    """What can do a job here: of each implementation at most so many configurations, best guesses first."""
    found = []
    for name in import_module(f"fasteomt.ops.{job.op}").IMPLEMENTATIONS:
        if name == _ORACLE:
            continue
        with suppress(UnsupportedError):
            module = implementation(job.op, name, target, job.problem)
            configs = (
                module.candidates(target, job.problem)[:most] if hasattr(module, "candidates") else [None]
            )
            found += [Choice(name, config) for config in configs]
    return found


def workers_for(device: torch.device) -> int:
    """Processes that compile and check at a time: as the cores and the GPU's free memory allow."""
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) - 2, free // _BYTES_OF_A_WORKER))


def tune(
    jobs: Sequence[Job],
    device: torch.device,
    *,
    most: int,
    seconds: float,
    workers: int,
    limit_s: float | None = None,
    progress: Progress = lambda what, done, total: None,
    start: Callable[[], Asker] = Worker,
) -> list[Finding]:
    """Check and time all that can do the jobs. What fails, hangs or is wrong is told in one line, left out.

    Args:
        most: configurations of each implementation. seconds: timed for each finalist and round.
        limit_s: stop about then; what was not reached has no times. Checks get more than half of it, and
            start with every implementation's best guesses; large problems are timed first.
    """
    began = time.monotonic()
    target, findings = Target.of(device), []
    for job in jobs:
        reason = without_oracle(job, target)
        if reason is None:
            findings.append(Finding(job, choices_of(job, target, most)))
        else:
            logger.warning("%s %s: can't be checked: %s", job.op, job.key, reason)
    running = [start() for _ in range(max(1, min(workers, len(findings))))]
    shares = shares_of(findings, len(running))
    try:
        deadline = None if limit_s is None else began + _SHARE_OF_CHECKS * limit_s
        Checks(running, shares, device, deadline, progress).run()
        end = None
        if limit_s is not None:
            end = max(began + limit_s, time.monotonic() + (1 - _SHARE_OF_CHECKS) * limit_s)
        spoilers: set[str] = set()
        order = [(worker, one) for worker, share in zip(running, shares, strict=True) for one in share]
        order.sort(key=lambda each: -each[1].job.flops)
        for done, (worker, finding) in enumerate(order):
            progress("problems timed", done, len(order))
            if end is not None and time.monotonic() > end:
                logger.warning("out of time: %d problems were not timed", len(order) - done)
                break
            choices = [choice for choice in finding.right if choice.implementation not in spoilers]
            spoilers |= _time(worker, finding, choices, device, seconds)
        else:
            progress("problems timed", len(order), len(order))
    finally:
        for worker in running:
            worker.close()
    return findings


def _time(
    worker: Asker, finding: Finding, choices: list[Choice], device: torch.device, seconds: float
) -> set[str]:
    """Time a problem's choices; what fails is told. Returns the implementations that make all timing fail.

    Should all fail together, each implementation is timed by itself.
    """
    names = dict.fromkeys(choice.implementation for choice in choices)
    if not names:
        return set()
    try:
        found, failures = worker.ask(_TIME_S, time_choices, finding.job, choices, device, seconds)
    except CallFailed as error:
        if len(names) > 1:
            parts = [[choice for choice in choices if choice.implementation == name] for name in names]
            return set().union(*(_time(worker, finding, part, device, seconds) for part in parts))
        for choice in choices:
            finding.leave_out(choice, f"can't be timed: {error}")
        return set(names)
    finding.seconds |= found
    for choice, reason in failures.items():
        finding.leave_out(choice, reason)
    return set()


def table_from(findings: Iterable[Finding], device: torch.device) -> Table:
    """The best of each implementation on each problem, for the GPU `device`."""
    entries = [
        Entry(
            finding.job.op,
            finding.job.key,
            choice.implementation,
            None if choice.config is None else asdict(choice.config),
            round(seconds * 1e6, 3),
        )
        for finding in findings
        for choice, seconds in finding.ranked
    ]
    return Table(
        hardware_name(device),
        str(torch.__version__),
        installed_version("triton"),
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tuple(entries),
    )
