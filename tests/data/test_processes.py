"""Work in several processes: in order, few items at a time, and a clear end when a process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fasteomt.data import processes
from fasteomt.data.processes import map_in_processes
from fasteomt.errors import FastEomtError


class Counted(Sequence[int]):
    """0, -1, -2, ... that notes how far it has been read."""

    def __init__(self, length: int) -> None:
        self.length, self.taken = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        self.taken = max(self.taken, index.stop if isinstance(index, slice) else index + 1)
        return range(0, -self.length, -1)[index]


def test_items_are_taken_as_they_are_needed_and_come_in_order() -> None:
    items = Counted(2_000)
    made = map_in_processes(abs, items, 2)
    assert next(made) == 0
    assert items.taken <= 100
    assert list(made) == list(range(1, 2_000))


def test_a_process_that_dies_is_said_in_one_line() -> None:
    with pytest.raises(FastEomtError, match="worker process died") as caught:
        list(map_in_processes(os._exit, [3, 3, 3, 3], 2))
    assert "\n" not in str(caught.value)


def test_an_error_of_the_work_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_in_processes((1).__floordiv__, [1, 0, 1], 2))


def test_no_more_processes_than_cores_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def pool(workers: int, **_: Any) -> None:
        raise Asked(workers)

    monkeypatch.setattr(processes, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    for workers, expected in ((2, 2), (10**30, 12)):
        with pytest.raises(Asked, match=f"^{expected}$"):
            list(map_in_processes(abs, range(1_000), workers))


@pytest.mark.skipif(os.name == "nt", reason="needs process groups of POSIX")
def test_ctrl_c_ends_all_processes_at_once_and_quietly() -> None:
    code = (
        "import time\n"
        "from fasteomt.data.processes import map_in_processes\n"
        "try:\n"
        "    for _ in map_in_processes(time.sleep, [0.01] * 8 + [30] * 1000, 2):\n"
        "        print('started', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(1)  # the other process may start later
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert out.endswith("interrupted\n")
    assert err == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_parent(number: signal.Signals) -> None:
    code = (
        "import os\n"
        "from fasteomt.data.processes import map_in_processes\n"
        "from test_processes import name_itself\n"
        "for pid in map_in_processes(name_itself, [0.2] * 16 + [1000] * 1000, 2):\n"
        "    print(pid, flush=True)\n"
    )
    paths = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        workers = {int(process.stdout.readline()) for _ in range(16)}
        process.send_signal(number)
        process.wait(timeout=20)
        end = time.monotonic() + 10
        while any(is_running(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.05)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def name_itself(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def is_running(pid: int) -> bool:
    """Not gone, and not only waiting for somebody to take note of its end."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
