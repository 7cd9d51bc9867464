"""Writing files so that a failure never costs the user what was there before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fasteomt.errors import InputError


def temporary_beside(path: Path) -> Path:
    """A hidden name in `path`'s folder, of this process alone; it keeps the suffix, which writers go by."""
    return path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes `path`'s name when the block ends without an error.

    Raises:
        InputError: `path` exists and `overwrite` is False, or its folder can't be written.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: choose another name or pass --overwrite")
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder beside `path`; it takes `path`'s place when the block ends without an error.

    A folder that is there until then is replaced: whether it may be is for the caller to check.

    Raises:
        InputError: the folder can't be written.
    """
    path = Path(os.path.abspath(path))
    temporary = temporary_beside(path)
    old = temporary.with_suffix(".old")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Write an indented JSON file.

    Raises:
        InputError: as `atomic_path`.
    """
    with atomic_path(path, overwrite=overwrite) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
