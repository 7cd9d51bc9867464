"""Reading and writing files so that a failure never costs the user what was there before."""

from __future__ import annotations

import errno
import functools
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fasteomt.errors import InputError

# What the system says of a name that something has.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_LONGEST_SUFFIX = 16  # bytes; no writer knows longer ones


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
    """A new hidden name in `path`'s folder; it keeps the suffix, which writers go by.

    It is random, since runs in two containers may share a folder and have one process number. It is short,
    since `path`'s own name may be as long as the system allows.
    """
    return _hidden(path, f".tmp{path.suffix if len(os.fsencode(path.suffix)) <= _LONGEST_SUFFIX else ''}")


def is_temporary(path: Path) -> bool:
    """Whether `path` is named as `temporary_beside` does: another run's, or left by one that crashed."""
    return path.name.startswith(".") and ".tmp" in path.name


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.stem[:16]}.{secrets.token_hex(8)}{ending}")


def put_in_place(temporary: Path, path: Path, *, overwrite: bool = True) -> None:
    """Give `temporary`, a file or a folder, the name `path`. What has that name is removed then.

    Raises:
        InputError: without `overwrite`, something but an empty folder has the name: it is left alone.
        OSError: it can't be renamed; what had the name still has it.
    """
    if not overwrite:
        _put_without_loss(temporary, path)
        return
    if not os.path.lexists(path) or not (path.is_dir() or temporary.is_dir()):
        os.replace(temporary, path)
        return
    # The system replaces files in one step, but no folder that holds something.
    old = _hidden(path, ".old")
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


def _put_without_loss(temporary: Path, path: Path) -> None:
    """Rename such that the system itself refuses a name that is taken: a look before would be too early."""
    try:
        if temporary.is_dir():
            os.rename(temporary, path)  # replaces an empty folder, and nothing else
        else:
            _link(temporary, path)
    except OSError as error:
        if error.errno in _TAKEN and os.path.lexists(path):
            raise taken(path) from None
        raise


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: a new file, which only one can make, holds the place.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.replace(temporary, path)
    else:
        temporary.unlink()


def taken(path: str | os.PathLike[str]) -> InputError:
    """The error for a name that something took while the work ran."""
    return InputError(
        f"{path} appeared or changed while this ran and was left alone, nothing new is kept: "
        "choose another name, or pass --overwrite"
    )


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
            put_in_place(temporary, real, overwrite=overwrite)
        except OSError as error:
            raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
        finally:
            # A failure to tidy up must not hide what went wrong before.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder beside `path`; it takes `path`'s place when the block ends without an error.

    A folder that is there from the beginning is replaced: whether it may be is for the caller to check. What
    comes there later is not. A link stays: the folder that it leads to is replaced.

    Raises:
        InputError: the folder can't be written, `path` is no folder or a mount point, or something else is
            there at the end.
    """
    real = Path(os.path.realpath(path))
    if os.path.exists(real) and not os.path.isdir(real):
        raise InputError(f"{path} is not a folder: choose another name")
    if os.path.ismount(real):
        raise InputError(f"{path} is a mount point, which can't be replaced: name a folder below it")
    check_folder(real.parent)
    before = _content(real)
    temporary = temporary_beside(real)
    with made_folder(real.parent):
        try:
            temporary.mkdir()
            try:
                yield temporary
                if before and _content(real) != before:
                    raise taken(path)
                put_in_place(temporary, real, overwrite=bool(before))
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as error:
            raise InputError(f"{path}: can't be written: {error.strerror or error}") from error


def _content(folder: Path) -> tuple[object, ...]:
    """What tells a folder and what it holds from another; () for an empty one and for none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"{folder}: can't be read: {error.strerror}") from None
    return (_identity(folder), *sorted(names)) if names else ()


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Write an indented JSON file, UTF-8.

    Raises:
        InputError: as `atomic_path`.
    """
    with atomic_path(path, overwrite=overwrite) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        # File names may hold bytes that are no text; such a half surrogate becomes the JSON escape \udcxx.
        temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
