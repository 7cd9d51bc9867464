"""What can go wrong, by name. Every message is one line: what, where, and what to do about it."""

from __future__ import annotations

import importlib
import reprlib
from types import ModuleType

_BRIEF = reprlib.Repr()
_BRIEF.maxstring, _BRIEF.maxother = 200, 80


class FastEomtError(Exception):
    """Base of all failures that a user can act on; `exit_code` is what the command line returns."""

    exit_code = 2


class InputError(FastEomtError):
    """Bad input or usage; nothing was done. Exit code 2."""


class CheckpointError(InputError):
    """A model file that can't be read or written. Exit code 2."""


class UnsupportedError(FastEomtError):
    """Hardware, number format or optional package that isn't there. Exit code 3."""

    exit_code = 3


class PartialResultError(FastEomtError):
    """The run broke off; what was finished until then is kept. Exit code 5.

    `summary`: of a video run its `fasteomt.video.Summary`, otherwise None.
    """

    exit_code = 5
    summary: object | None = None


class InterruptedRun(FastEomtError):
    """Stopped by the user (Ctrl-C, SIGTERM); the partial result is kept and playable. Exit code 130.

    `summary`: as in `PartialResultError`.
    """

    exit_code = 130
    summary: object | None = None


def one_line(error: BaseException) -> str:
    """An exception's text without line breaks, for messages of one line."""
    return " ".join(str(error).split()) or type(error).__name__


def brief(value: object) -> str:
    """Any value for a message: as Python writes it, on one line, cut to a bearable length."""
    try:
        return " ".join(_BRIEF.repr(value).split())
    except ValueError:  # an integer of more digits than Python writes
        return f"{type(value).__name__} of many digits"


def need(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say in one line which extra brings it.

    Raises:
        UnsupportedError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise UnsupportedError(
            f"package '{module.split('.')[0]}' is not installed: run pip install 'fasteomt[{extra}]'"
        ) from None
