"""One holder at a time: between processes, threads and forks; by UUID; gone with the process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fasteomt.bench import lock
from fasteomt.bench.lock import exclusive, gpu_lock
from fasteomt.errors import InputError

NAME = "GPU-test"
HOLD = """
import pathlib, sys
from fasteomt.bench import lock
lock.FOLDER = pathlib.Path(sys.argv[1])
with lock.exclusive(sys.argv[2], 0):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds NAME until its input ends."""
    command = [sys.executable, "-c", HOLD, str(folder), NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_is_named_and_its_death_frees_the_lock(holder: subprocess.Popen[str]) -> None:
    with pytest.raises(InputError, match=rf"GPU-test is in use by process {holder.pid}"), exclusive(NAME, 0):
        pass
    with exclusive("GPU-other", 0):
        pass
    holder.kill()
    holder.wait()
    with exclusive(NAME, 0):
        pass


def test_waits_as_long_as_asked(holder: subprocess.Popen[str]) -> None:
    start = time.monotonic()
    with pytest.raises(InputError), exclusive(NAME, 0.3):
        pass
    assert 0.3 <= time.monotonic() - start < 5
    assert holder.stdin is not None
    threading.Timer(0.3, holder.stdin.close).start()
    with exclusive(NAME, 30):
        assert time.monotonic() - start >= 0.6


def test_the_physical_gpu_counts_not_its_index(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "gpu_uuid", lambda device: NAME if device.index == 1 else "GPU-first")
    with pytest.raises(InputError, match=NAME), gpu_lock(torch.device("cuda", 1)):
        pass
    with gpu_lock(torch.device("cuda", 0)):
        pass


def test_the_cpu_needs_no_lock(folder: Path) -> None:
    with gpu_lock(torch.device("cpu")), gpu_lock(torch.device("cpu")):
        assert list(folder.iterdir()) == []


def test_the_same_thread_may_take_it_again_but_no_other(folder: Path) -> None:
    failures: list[Exception] = []

    def take() -> None:
        try:
            with exclusive(NAME, 0):
                pass
        except InputError as error:
            failures.append(error)

    def in_thread() -> None:
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    with exclusive(NAME, 0):
        with exclusive(NAME, 0):
            pass
        # The inner block's end must not have given the lock away.
        assert _taken_elsewhere(folder)
        in_thread()
        assert len(failures) == 1 and "another thread" in str(failures[0])
    in_thread()
    assert len(failures) == 1
    assert not _taken_elsewhere(folder)


def test_a_forked_child_does_not_hold_its_parents_lock() -> None:
    with exclusive(NAME, 0):
        child = os.fork()
        if child == 0:
            try:
                with exclusive(NAME, 0):
                    os._exit(1)
            except InputError:
                os._exit(0)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_lives_on_does_not_keep_the_lock(folder: Path) -> None:
    """As data loaders' processes do, which inherit every open file."""
    reading, writing = os.pipe()
    with exclusive(NAME, 0):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        assert not _taken_elsewhere(folder)
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(child, 0)


def test_a_failing_block_frees_the_lock(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(NAME, 0):
        _ = 1 / 0
    assert not _taken_elsewhere(folder)


def test_what_is_no_file_is_refused(folder: Path) -> None:
    path = folder / f"fasteomt-{NAME}.lock"
    path.symlink_to(folder / "victim")
    with pytest.raises(InputError, match=f"{path}.*remove it"), exclusive(NAME, 0):
        pass
    assert not (folder / "victim").exists()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="regular file"), exclusive(NAME, 0):
        pass


def test_a_lock_on_a_file_that_was_tidied_away_is_no_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, the file may go: whoever comes next would lock another."""
    path = folder / f"fasteomt-{NAME}.lock"
    lockf, tidied = fcntl.lockf, []

    def slow(descriptor: int, operation: int) -> None:
        if not tidied:
            path.unlink()
            tidied.append(path)
        lockf(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", slow)
    with exclusive(NAME, 0):
        assert _taken_elsewhere(folder)
        assert tidied


def _taken_elsewhere(folder: Path) -> bool:
    """Whether another process finds NAME taken."""
    command = [sys.executable, "-c", HOLD, str(folder), NAME]
    done = subprocess.run(command, input="", capture_output=True, text=True)
    assert done.returncode == 0 or "is in use by" in done.stderr
    return done.returncode != 0
