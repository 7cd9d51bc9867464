"""The same work on many things, in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import cv2

Item = TypeVar("Item")
Made = TypeVar("Made")


def map_in_processes(work: Callable[[Item], Made], items: Sequence[Item], workers: int) -> Iterator[Made]:
    """What `work` makes of each item, in order; with fewer than two workers in this process.

    `work`, items and what is made of them are pickled.
    """
    if workers <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    # Spawned, not forked: the parent may hold threads (torch, OpenCV) that a fork would break.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(items)), mp_context=context, initializer=cv2.setNumThreads, initargs=(1,)
    )
    try:
        yield from pool.map(work, items, chunksize=min(8, -(-len(items) // workers)))
    finally:
        pool.shutdown(cancel_futures=True)
