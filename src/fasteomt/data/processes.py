"""The same work on many things, in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import cv2

from fasteomt.errors import FastEomtError

Item = TypeVar("Item")
Made = TypeVar("Made")

# More processes only cost memory: the work waits for the processor, hardly ever for files.
MOST_PER_CORE = 4
# Chunks that wait for each process: enough to keep all of them busy behind a slow one, and few to throw away.
_AHEAD = 4


def map_in_processes(
    work: Callable[[Item], Made], items: Sequence[Item], workers: int
) -> Generator[Made, None, None]:
    """What `work` makes of each item, in order; with fewer than two workers in this process.

    `work`, items and what is made of them are pickled. Only a few items and results for each process are in
    memory at a time.

    Args:
        workers: processes, at most; there are never more than `MOST_PER_CORE` for each core.

    Raises:
        FastEomtError: a process died.
    """
    workers = min(workers, len(items), MOST_PER_CORE * (os.cpu_count() or 1))
    if workers <= 1:
        yield from map(work, items)
        return
    # Spawned, not forked: the parent may hold threads (torch, OpenCV) that a fork would break.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare)
    chunk = min(8, -(-len(items) // workers))
    waiting: deque[Future[list[Made]]] = deque()
    try:
        for start in range(0, len(items), chunk):
            waiting.append(pool.submit(_work_on, work, items[start : start + chunk]))
            if len(waiting) >= _AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise FastEomtError(
            "a worker process died, perhaps for want of memory: free some, or use fewer workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    cv2.setNumThreads(1)
    # Ctrl-C reaches all processes: these just end, and the parent says what there is to say.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A parent that is killed can't end them.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_on(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    return [work(item) for item in items]
