"""Working ahead in a thread, by a bounded number of items."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_END = object()


class Prefetch(Generic[T]):
    """Iterates over `items` in a thread that stays at most `depth` items ahead of its consumer.

    An exception of the producer is raised where the consumer would have got the next item.
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._items = items
        self._queue: queue.Queue[object] = queue.Queue(depth)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        # A daemon, so that a consumer that dies without `close` does not keep the process alive.
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)

    def _produce(self) -> None:
        try:
            for item in self._items:
                self._queue.put(item)
                if self._stop.is_set():
                    break
        except BaseException as error:
            self._failure = error
        finally:
            # Ends generators here, in the thread that ran them.
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
            self._queue.put(_END)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        while (item := self._queue.get()) is not _END:
            yield item  # type: ignore[misc]
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                # Frees a producer that waits for room.
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
