"""A process that makes one call at a time and can be given up on: kernels may hang, or end their process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fasteomt.errors import one_line

_LONGEST_START_S = 120.0  # importing torch from a cold disk


class CallFailed(Exception):
    """A call in a worker raised, ended its process, or took too long; the worker takes the next one."""


class WorkerLost(CallFailed):
    """The call cost its process; the next one starts another."""


class WorkerSpoilt(Exception):
    """For a call to raise: it failed, and its process must not be used any further."""


class Worker:
    """Close it after use. Calls are functions of modules, with arguments that can be pickled."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Connection | None = None

    def ask(self, timeout_s: float, function: Callable[..., Any], *arguments: object) -> Any:
        """What function(*arguments) returns there.

        Raises:
            CallFailed: says how.
            WorkerLost: and it took its process with it.
        """
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(timeout_s):
                self.close()
                raise WorkerLost(f"no answer in {timeout_s:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            raise WorkerLost(f"its process died (exit code {code})") from None
        if kind == "spoilt":
            self.close()
            raise WorkerLost(value)
        if kind != "value":
            raise CallFailed(value)
        return value

    def _start(self) -> None:
        # Not forked: a process that has used CUDA can't be.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        try:
            ready = self._pipe.poll(_LONGEST_START_S) and self._pipe.recv()
        except (EOFError, OSError):
            ready = None
        if ready != "ready":
            self.close()
            raise WorkerLost("its process did not start")

    def kill(self) -> None:
        """Break off a call that another thread waits for."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join(10)
        self._pipe = self._process = None


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks decides when to stop
    pipe.send("ready")
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = "value", function(*arguments)
        except WorkerSpoilt as error:
            answer = "spoilt", one_line(error)
        except BaseException as error:
            answer = "error", f"{type(error).__name__}: {one_line(error)}"
        pipe.send(answer)
