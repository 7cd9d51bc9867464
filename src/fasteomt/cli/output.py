"""Where tables and figures go: standard output, in whole lines."""

from __future__ import annotations

from rich.console import Console

_UNLIMITED = 100_000  # columns; tables take what they need


def output() -> Console:
    """Standard output: as wide as the terminal, or where there is none (a file, a pipe), as the lines are."""
    console = Console()
    return console if console.is_terminal else Console(width=_UNLIMITED)
