"""Reading and writing files so that a failure never costs the user what was there before."""

from __future__ import annotations

import functools
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fasteomt.errors import InputError


def require_file(path: str | os.PathLike[str]) -> None:
    """Check that `path` is a file to read: opening a pipe or a device could wait for ever.

    Raises:
        InputError: nothing there, or not a regular file.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: not a regular file: name a file, not a folder, pipe, socket or device")


def check_folder(folder: Path) -> None:
    """Check that files can be made in `folder`, which need not be there yet.

    Raises:
        InputError: it, or the nearest of its parents that is there, is no folder or takes no new files.
    """
    nearest = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    where = f"{folder}" if nearest == folder else f"{folder}: {nearest}"
    if not nearest.is_dir():
        raise InputError(f"{where} is not a folder: choose another place")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{where} can't be written to: choose another place")


def check_target(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Check that a file can be written to `path`, before the work that is to be written.

    Returns:
        The file that is meant, behind all links.

    Raises:
        InputError: `path` exists and `overwrite` is False, it is no file, or its folder can't be written to.
    """
    path = Path(path)
    real = Path(os.path.realpath(path))
    # os.path's questions, unlike Path's, take a folder that can't be looked into for an answer.
    if os.path.isdir(real):
        raise InputError(f"{path} is a folder: name a file")
    if os.path.exists(real) and not os.path.isfile(real):
        raise InputError(f"{path} is not a regular file: name a file, not a pipe, socket or device")
    if os.path.exists(real) and not overwrite:
        raise InputError(f"{path} exists: choose another name or pass --overwrite")
    check_folder(real.parent)
    return real


def find_replaced(sources: Iterable[Path], targets: Iterable[Path]) -> tuple[Path, Path] | None:
    """A source that is one of the targets or lies below one, and this target; None if there is none.

    Files are told apart by what they are, not by name: links and other spellings are seen through.
    """
    identity = functools.cache(_identity)
    at_risk = {identity(target): target for target in targets if identity(target) is not None}
    if not at_risk:
        return None
    for source in sources:
        # A link is a source too, beside the file that it leads to.
        link = Path(os.path.realpath(source.parent), source.name)
        file = Path(os.path.realpath(source))
        for one in (link, *link.parents, file, *file.parents):
            if identity(one) in at_risk:
                return source, at_risk[identity(one)]
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def temporary_beside(path: Path) -> Path:
    """A hidden name in `path`'s folder, of this process alone; it keeps the suffix, which writers go by."""
    return path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")


def put_in_place(temporary: Path, path: Path) -> None:
    """Give `temporary`, a file or a folder, the name `path`. What has that name is removed then.

    Raises:
        OSError: it can't be renamed; what had the name still has it.
    """
    if not os.path.lexists(path) or not (path.is_dir() or temporary.is_dir()):
        os.replace(temporary, path)
        return
    # The system replaces files in one step, but no folder that holds something.
    old = temporary_beside(path).with_suffix(".old")
    os.replace(path, old)
    try:
        os.replace(temporary, path)
    except BaseException as error:
        try:
            os.replace(old, path)
        except OSError:
            raise OSError(f"{error}; what was there is now {old}") from error
        raise
    with suppress(OSError):
        remove(old)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing there is fine too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder and its parents for the block; those made here and still empty go if the block fails.

    Raises:
        InputError: for an OSError, from making the folder or from the block.
    """
    missing = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
        if isinstance(error, OSError):
            raise InputError(f"{folder}: can't be written to: {error.strerror or error}") from error
        raise


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes `path`'s name when the block ends without an error.

    A link stays: the file that it leads to is written.

    Raises:
        InputError: as `check_target`, or the file can't be written.
    """
    real = check_target(path, overwrite=overwrite)
    temporary = temporary_beside(real)
    with made_folder(real.parent):
        try:
            yield temporary
            put_in_place(temporary, real)
        except OSError as error:
            raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
        finally:
            # A failure to tidy up must not hide what went wrong before.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder beside `path`; it takes `path`'s place when the block ends without an error.

    A folder that is there until then is replaced: whether it may be is for the caller to check. A link stays:
    the folder that it leads to is replaced.

    Raises:
        InputError: the folder can't be written, or `path` is no folder.
    """
    real = Path(os.path.realpath(path))
    if os.path.exists(real) and not os.path.isdir(real):
        raise InputError(f"{path} is not a folder: choose another name")
    check_folder(real.parent)
    temporary = temporary_beside(real)
    with made_folder(real.parent):
        try:
            temporary.mkdir()
            yield temporary
            put_in_place(temporary, real)
        except OSError as error:
            raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Write an indented JSON file, UTF-8.

    Raises:
        InputError: as `atomic_path`.
    """
    with atomic_path(path, overwrite=overwrite) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        # File names may hold bytes that are no text; such a half surrogate becomes the JSON escape \udcxx.
        temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
