"""One measurement at a time on a GPU: a lock between processes, one for each physical device."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fasteomt.bench.telemetry import gpu_uuid
from fasteomt.errors import InputError, UnsupportedError

# One place for all: TMPDIR and XDG_RUNTIME_DIR differ between two shells, and each would have its own lock.
FOLDER = Path("/tmp")
_POLL_S = 0.05

_mutexes: dict[str, threading.RLock] = {}  # between this process's threads, which file locks don't part
_held: set[str] = set()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_held.clear)  # a child doesn't hold its parent's locks


@contextmanager
def gpu_lock(device: torch.device, wait_s: float = 0.0) -> Iterator[None]:
    """Have a GPU to oneself, among all who measure with fasteomt on this machine; nothing to do for the CPU.

    Goes by the device's UUID, so indices and CUDA_VISIBLE_DEVICES don't matter. Released when the block ends
    or the process dies. A thread that has the lock may take it again.

    Args:
        wait_s: how long to wait for whoever has it, in seconds.

    Raises:
        InputError: another process, or another thread of this one, still has it; names the process.
        UnsupportedError: this system has no such locks.
    """
    if device.type == "cpu":
        yield
        return
    with exclusive(gpu_uuid(device), wait_s):
        yield


@contextmanager
def exclusive(name: str, wait_s: float) -> Iterator[None]:
    """The lock `name`, as `gpu_lock` takes it."""
    deadline = time.monotonic() + wait_s
    mutex = _mutexes.setdefault(name, threading.RLock())
    if not mutex.acquire(timeout=max(wait_s, 0.0)):
        raise InputError(f"{name} is in use by another thread of this process: measure in one thread")
    try:
        if name in _held:
            yield
            return
        descriptor = _lock_file(name, deadline)
        _held.add(name)
        try:
            yield
        finally:
            _held.discard(name)
            os.close(descriptor)
    finally:
        mutex.release()


def _lock_file(name: str, deadline: float) -> int:
    if sys.platform == "win32":
        raise UnsupportedError("measuring on a GPU needs file locks, which Windows lacks: use Linux or WSL")
    import fcntl

    path = FOLDER / f"fasteomt-{name}.lock"
    while True:
        descriptor = _open(path)
        try:
            # Not flock: that would live on in every child that is forked meanwhile, data loaders' above all.
            # The price: whatever opens and closes this file in this process gives the lock away.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if time.monotonic() >= deadline:
                who = f"process {holder}" if holder.isdecimal() else "another process"
                raise InputError(
                    f"{name} is in use by {who}, which measures on it: wait until it ends, or use another GPU"
                ) from None
            time.sleep(_POLL_S)
            continue
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)  # somebody tidied it away between opening and locking


def _open(path: Path) -> int:
    """Open the lock's file, made at need; other users may lock it too."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            # First without O_CREAT, which Linux refuses on other users' files in /tmp.
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
            os.fchmod(descriptor, 0o666)
    except OSError as error:
        raise InputError(f"{path}: can't be opened to lock the GPU: {error.strerror}: remove it") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path}: must be a regular file to lock the GPU: remove it")
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
