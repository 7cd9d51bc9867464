"""`fasteomt data`: refused arguments end in one line and exit code 2, and leave nothing."""

from __future__ import annotations

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
