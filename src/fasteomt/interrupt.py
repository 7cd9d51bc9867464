"""Ctrl-C and SIGTERM for programs: stop once, tidy up in peace."""

from __future__ import annotations

import atexit
import signal
import threading
import time
from types import FrameType

# Seconds in which a further signal is taken for impatience, which mustn't break off the tidying up.
_PATIENCE = 10.0


class InterruptOnce:
    """A signal handler that raises KeyboardInterrupt, and then not again while the work is being undone."""

    def __init__(self) -> None:
        self._asked: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None and time.monotonic() - self._asked < _PATIENCE:
            return
        self.asked()
        raise KeyboardInterrupt

    def asked(self) -> None:
        """The user asked already, and something else is acting on it."""
        self._asked = time.monotonic()


def interrupt_once() -> None:
    """Make SIGTERM end the program as Ctrl-C does, and both only once.

    Signals that the program's caller has it ignore, or that somebody handles, stay as they are; so do those
    of a thread, where they don't arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = InterruptOnce()
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        now = signal.getsignal(number)
        if now is usual or isinstance(now, InterruptOnce):
            signal.signal(number, handler)


def end_interrupted() -> None:
    """For a program that was interrupted and ends: a signal that comes late changes its exit code no more."""
    atexit.register(_ignore)


def _ignore() -> None:
    # Python's end takes every other handler away.
    for number in (signal.SIGINT, signal.SIGTERM):
        if isinstance(signal.getsignal(number), InterruptOnce):
            signal.signal(number, signal.SIG_IGN)


def end_interrupt_once() -> None:
    """Undo `interrupt_once`, for a program that is part of another."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if isinstance(signal.getsignal(number), InterruptOnce):
            signal.signal(number, usual)
