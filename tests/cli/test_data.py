"""`fasteomt data`: refused arguments end in one line and exit code 2, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fasteomt.cli.main import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["clip", "OUT.mp4", "--fps", "inf"],
        ["clip", "OUT.mp4", "--fps", "nan"],
        ["clip", "OUT.mp4", "--fps", "1e12"],
        ["clip", "OUT.mp4", "--bitrate", "1e30"],
        ["clip", "OUT.mp4", "--bitrate", "1"],
        ["clip", "OUT.mp4", "--frames", "9" * 400],
        ["clip", "OUT.mp4", "--width", "1000000000"],
        ["synth", ""],
        ["synth", "OUT", "--train", "9" * 400],
        ["synth", "OUT", "--size", "9" * 5000 + "x100"],
    ],
)
def test_absurd_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("fasteomt: error: ")
    assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_sigterm_is_as_ctrl_c(tmp_path: Path) -> None:
    """Exit 130, one line, no temporary folder, although several processes write into it."""
    command = [sys.executable, "-m", "fasteomt.cli.main", "data", "synth", str(tmp_path / "a/heads")]
    command += ["--train", "5000", "--size", "64x64", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not list(tmp_path.rglob("*.jpg")) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "fasteomt: error: interrupted" and "Traceback" not in errors
    assert not any(tmp_path.iterdir())
