"""A worker answers; what raises, dies or hangs in it costs that call alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from fasteomt.bench.worker import CallFailed, Worker, WorkerSpoilt


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def number(of: str) -> int:
    if of == "spoilt":
        raise WorkerSpoilt("the device\nis lost")
    return os.getpid()


def test_calls_are_made_in_one_process_until_it_is_lost(worker: Worker) -> None:
    first = worker.ask(60, number, "process")
    assert first != os.getpid()
    with pytest.raises(CallFailed, match="ValueError: invalid literal"):
        worker.ask(60, int, "x")
    assert worker.ask(60, number, "process") == first
    with pytest.raises(CallFailed, match="the device is lost"):
        worker.ask(60, number, "spoilt")
    second = worker.ask(60, number, "process")
    assert second != first
    with pytest.raises(CallFailed, match=r"died \(exit code 7\)"):
        worker.ask(60, os._exit, 7)
    assert worker.ask(60, number, "process") not in (first, second)


def test_a_call_that_hangs_is_given_up(worker: Worker) -> None:
    worker.ask(60, number, "process")
    began = time.monotonic()
    with pytest.raises(CallFailed, match="no answer in 0 s"):
        worker.ask(0.2, time.sleep, 60)
    assert time.monotonic() - began < 10
    assert worker.ask(60, int, "3") == 3


def test_a_call_can_be_broken_off_by_another_thread(worker: Worker) -> None:
    worker.kill()  # nothing runs
    worker.ask(60, number, "process")
    threading.Timer(0.2, worker.kill).start()
    with pytest.raises(CallFailed, match="died"):
        worker.ask(60, time.sleep, 60)
