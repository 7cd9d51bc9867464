"""Writing files so that a failure never costs the user what was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fasteomt.errors import InputError


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes `path`'s name when the block ends without an error.

    The temporary name keeps the suffix, so writers that go by it still work.

    Raises:
        InputError: `path` exists and `overwrite` is False, or its folder can't be written.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: choose another name or pass --overwrite")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
