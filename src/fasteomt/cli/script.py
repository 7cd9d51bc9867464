"""What the command line and stand-alone scripts share: failures of one line, and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from fasteomt.errors import FastEomtError, brief, one_line
from fasteomt.interrupt import end_interrupt_once, end_interrupted, interrupt_once

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_MEMORY = ("not enough memory", "out of memory", "insufficient memory", "can't allocate memory")
_INTERRUPTED = 130


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, as everywhere in this project."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (see --help)\n")


def exit_code(name: str, work: Callable[[], object]) -> int:
    """Do the work of the program called `name`: its exit code, after one line on stderr if it failed.

    0 done, or an int that `work` returns; 1 nobody reads the output any more, which is not told; 2 a path
    that the system refuses; 3 want of memory; 5 input or output broke off; 130 interrupted, by Ctrl-C or
    SIGTERM; others as `FastEomtError` has them. FASTEOMT_DEBUG=1 adds the traceback of a failure.
    """
    interrupt_once()
    code = _attempt(name, work)
    if code == _INTERRUPTED:
        end_interrupted()  # or the next of several signals would break off the program's end
    else:
        end_interrupt_once()
    # Now, since at the interpreter's end nobody would report a failure.
    flushed = _attempt(name if code == 0 else None, _flush_output)
    return code or flushed


def _attempt(name: str | None, work: Callable[[], object]) -> int:
    """Exit code of `work`; without a name, a failure is not told."""
    try:
        code = work()
        if code == _INTERRUPTED:  # typer makes that of Ctrl-C, without a word
            return _fail(name, "interrupted", _INTERRUPTED)
        return code if isinstance(code, int) else 0
    except FastEomtError as error:
        return _fail(name, str(error), error.exit_code)
    except BrokenPipeError:
        return 1
    except OSError as error:
        what, code = error.strerror or str(error), 2
        if error.filename is None:  # no path but a stream
            what, code = f"input or output broke off: {what}", 5
        else:
            # Names that the file system refuses can come up wherever a path is looked at.
            what = f"{brief(error.filename)}: {what}"
        remedy = ": free some space" if error.errno in _NO_SPACE else ": check the path" if code == 2 else ""
        return _fail(name, what + remedy, code)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", _INTERRUPTED)
    except Exception as error:
        if not _is_want_of_memory(error):
            raise
        detail = one_line(error)
        told = "not enough memory" + (f" ({detail[:200]})" if detail != type(error).__name__ else "")
        return _fail(name, f"{told}: free some, or use smaller pictures, a smaller model or fewer workers", 3)


def _is_want_of_memory(error: Exception) -> bool:
    """MemoryError, and what torch and OpenCV raise in its place, which is told apart by its text alone."""
    text = str(error).casefold()
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


def _flush_output() -> None:
    if sys.stdout is None:  # closed by whoever started this
        return
    try:
        sys.stdout.flush()
    except OSError:
        # What is still in the buffer goes nowhere, or the interpreter would try again and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _fail(name: str | None, message: str, code: int) -> int:
    if name is not None:
        with contextlib.suppress(OSError):  # the exit code still tells
            print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
            if os.environ.get("FASTEOMT_DEBUG"):
                traceback.print_exc()
    return code
