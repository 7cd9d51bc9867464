"""Stopping between two frames when the user or the system asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fasteomt.interrupt import InterruptOnce


class StopRequest:
    """`name` is the signal that asked to stop, or None.

    Set `finishing` when the outputs are being closed: an interruption then would cost what is to be kept.
    """

    name: str | None = None
    finishing: bool = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; the next one interrupts at once, later ones nothing.

    Outside the main thread, where signals don't arrive, nothing is changed.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    interrupted = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if request.name is None:
            request.name = signal.Signals(number).name
        elif not (request.finishing or interrupted):
            interrupted = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        request.finishing = True
        for number, handler in before.items():
            if request.name is not None and isinstance(handler, InterruptOnce):
                # The program is about to say that it was stopped: more of the same adds nothing.
                handler.asked()
            signal.signal(number, handler)
