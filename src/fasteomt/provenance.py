"""Which source code a record was made with."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def commit() -> str | None:
    """The git commit that this package's files lie in, with "-dirty" behind it if they differ from it.

    None where they are not part of a checkout, as in an installed package, or where git can't tell.
    """
    # Installed somewhere below another project's checkout, git would name that project's commit.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=all", "--", ".")
    if head is None or changes is None:
        return None
    return f"{head}-dirty" if changes else head


def source_digest() -> str:
    """SHA-256 (hex) over the package's code, Python and CUDA: of each file its relative path and content, in
    the order of paths."""
    total = hashlib.sha256()
    code = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".cu", ".cuh"))
    for path in sorted(code, key=_relative):
        total.update(_relative(path).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _git(*arguments: str) -> str | None:
    """What git says of the package's folder; None if it fails or isn't there."""
    # Set by hooks, these would point at another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # Looking must not take the lock that the user's own git may want.
    command = ["git", "--no-optional-locks", "-C", str(PACKAGE), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
