"""Stopping between two frames when the user or the system asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """`name` is the signal that asked to stop, or None."""

    name: str | None = None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; the next one interrupts at once.

    Outside the main thread, where signals don't arrive, nothing is changed.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request.name is not None:
            raise KeyboardInterrupt
        request.name = signal.Signals(number).name

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
