"""What stand-alone scripts share: usage errors and failures of one line, and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from fasteomt.errors import FastEomtError


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, as everywhere in this project."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def exit_code(name: str, work: Callable[[], object]) -> int:
    """Do the work of the script called `name`: 0, or a failure's exit code, after one line on stderr."""
    try:
        work()
    except FastEomtError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
