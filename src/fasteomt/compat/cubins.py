"""Machine code kept between processes: compiling CUDA C++ takes seconds that every start would pay again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fasteomt.cache import cache_root
from fasteomt.errors import InputError


@dataclass(frozen=True)
class Binary:
    """A cubin and what the compiler said: with `--ptxas-options=-v`, registers and spills of each kernel."""

    cubin: bytes
    log: str


def kept(inputs: Sequence[object], build: Callable[[], Binary]) -> Binary:
    """What `build` gave for these inputs before, else what it gives now, which is kept.

    Args:
        inputs: all that the result depends on, the compiler's version among them, with unambiguous `repr`s.
    """
    key = hashlib.sha256(repr(tuple(inputs)).encode()).hexdigest()
    try:
        path = cache_root() / "cubins" / f"{key}.cubin"
    except InputError:  # there is no place for it
        return build()
    found = _read(path, key)
    if found is None:
        found = build()
        with suppress(OSError):  # a cache that can't be written is no reason to fail
            _write(path, key, found)
    return found


def _read(path: Path, key: str) -> Binary | None:
    """None if there is no such file, it isn't whole, or it is another key's."""
    try:
        header, _, cubin = path.read_bytes().partition(b"\n")
        told = json.loads(header)
        if told == _header(key, Binary(cubin, told["log"])):
            return Binary(cubin, told["log"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _header(key: str, binary: Binary) -> dict[str, str]:
    return {"key": key, "sha256": hashlib.sha256(binary.cubin).hexdigest(), "log": str(binary.log)}


def _write(path: Path, key: str, binary: Binary) -> None:
    """In one step, since other processes may read and write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps(_header(key, binary))
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(header.encode() + b"\n" + binary.cubin)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
