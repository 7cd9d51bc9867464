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

from fasteomt.errors import FastEomtError, brief

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, as everywhere in this project."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (see --help)\n")


def exit_code(name: str, work: Callable[[], object]) -> int:
    """Do the work of the program called `name`: its exit code, after one line on stderr if it failed.

    0 done, or an int that `work` returns; 1 nobody reads the output any more, which is not told; 2 a path
    that the system refuses; 5 input or output broke off; 130 interrupted; others as `FastEomtError` has them.
    FASTEOMT_DEBUG=1 adds the traceback of a failure.
    """
    code = _attempt(name, work)
    # Now, since at the interpreter's end nobody would report a failure.
    flushed = _attempt(name if code == 0 else None, _flush_output)
    return code or flushed


def _attempt(name: str | None, work: Callable[[], object]) -> int:
    """Exit code of `work`; without a name, a failure is not told."""
    try:
        code = work()
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
        return _fail(name, "interrupted", 130)


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
