"""Compile and check implementations in several processes at a time, one of which may die or hang."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fasteomt.bench.kernel_cases import Choice, Job, check, prepare
from fasteomt.bench.worker import CallFailed, WorkerLost

logger = logging.getLogger(__name__)

_START_S, _CHECK_S = 120.0, 45.0  # the longest that a worker's start, and one check, may take
_MOST_LOSSES = 3  # an implementation that has cost so many processes isn't tried any further

# Told what is being done, how many of it are done, and how many there are; from several threads.
Progress = Callable[[str, int, int], None]


class Asker(Protocol):
    """A `Worker`, or what stands in for one."""

    def ask(self, timeout_s: float, function: Callable[..., Any], *arguments: object) -> Any: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Finding:
    """A job's right choices with seconds a call, and why others were left out."""

    job: Job
    choices: list[Choice]
    right: list[Choice] = field(default_factory=list)
    seconds: dict[Choice, float] = field(default_factory=dict)
    left_out: dict[Choice, str] = field(default_factory=dict)

    def leave_out(self, choice: Choice, reason: str) -> None:
        self.left_out[choice] = reason
        logger.warning("%s %s: %s: %s", self.job.op, self.job.key, choice.name, reason)

    @property
    def ranked(self) -> list[tuple[Choice, float]]:
        """The best of each implementation, the fastest first."""
        best: dict[str, tuple[Choice, float]] = {}
        for choice, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            best.setdefault(choice.implementation, (choice, seconds))
        return list(best.values())


def shares_of(findings: Iterable[Finding], count: int) -> list[list[Finding]]:
    """About as many choices for each of `count` workers; families stay together, to be compiled once."""
    ordered = sorted(findings, key=lambda one: one.job.family)
    total, before = max(1, sum(len(one.choices) for one in ordered)), 0
    shares: list[list[Finding]] = [[] for _ in range(count)]
    for one in ordered:
        middle = before + len(one.choices) / 2
        shares[min(count - 1, int(middle * count / total))].append(one)
        before += len(one.choices)
    return shares


def _by_rank(choices: Iterable[Choice]) -> list[Choice]:
    """The first configuration of every implementation, then the second ones, and so on."""
    of_each: dict[str, list[Choice]] = {}
    for choice in choices:
        of_each.setdefault(choice.implementation, []).append(choice)
    longest = max(map(len, of_each.values()), default=0)
    return [part[rank] for rank in range(longest) for part in of_each.values() if rank < len(part)]


class Checks:
    """Each worker checks the choices of its share's jobs, all jobs' first ones first.

    Args:
        deadline: by `time.monotonic()`: what isn't begun by then is left untried.
    """

    def __init__(
        self,
        workers: Sequence[Asker],
        shares: Sequence[Sequence[Finding]],
        device: torch.device,
        deadline: float | None,
        progress: Progress,
    ) -> None:
        self._workers, self._shares, self._device = workers, shares, device
        self._deadline, self._progress = deadline, progress
        self._total = sum(len(one.choices) for share in shares for one in share)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._done, self._late = 0, 0
        self._losses = Counter[str]()  # by implementation: processes that it has cost

    def run(self) -> None:
        with ThreadPoolExecutor(len(self._workers)) as pool:
            each = zip(self._workers, self._shares, strict=True)
            futures = [pool.submit(self._work, worker, share) for worker, share in each]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stop.set()
                for worker in self._workers:
                    worker.kill()
                raise
        if self._late:
            logger.warning("out of time: %d of %d kernels were not tried", self._late, self._total)

    def _work(self, worker: Asker, share: Sequence[Finding]) -> None:
        tasks = [(rank, one, choice) for one in share for rank, choice in enumerate(_by_rank(one.choices))]
        if tasks:
            with suppress(CallFailed):
                worker.ask(_START_S, prepare, self._device)
        for _, finding, choice in sorted(tasks, key=lambda task: task[0]):
            if self._stop.is_set():
                return
            if self._deadline is not None and time.monotonic() > self._deadline:
                with self._lock:
                    self._late += 1
                continue
            reason = self._check(worker, finding.job, choice)
            with self._lock:
                if self._stop.is_set():
                    return
                self._done += 1
                self._progress("kernels compiled and checked", self._done, self._total)
                if reason is None:
                    finding.right.append(choice)
                else:
                    finding.leave_out(choice, reason)

    def _check(self, worker: Asker, job: Job, choice: Choice) -> str | None:
        name = choice.implementation
        if self._losses[name] >= _MOST_LOSSES:
            return f"not tried: others of '{name}' cost {_MOST_LOSSES} processes"
        try:
            reason: str | None = worker.ask(_CHECK_S, check, job, choice, self._device)
        except CallFailed as error:
            if isinstance(error, WorkerLost):
                with self._lock:
                    self._losses[name] += 1
            return str(error)
        return reason
