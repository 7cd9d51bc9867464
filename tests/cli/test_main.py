"""The command line as a process: exit codes, one line for a failure, and where the lines go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fasteomt.checkpoint import Checkpoint
from fasteomt.cli import script
from fasteomt.cli.main import main
from fasteomt.errors import InputError
from fasteomt.interrupt import end_interrupt_once

COMMAND = [sys.executable, "-m", "fasteomt.cli.main"]


def stderr_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["--version"], ["plan", "show", "--model", "vitt16"]])
def test_full_output_is_no_matter_of_paths(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 5
    assert done.stderr == (
        "fasteomt: error: input or output broke off: No space left on device: free some space\n"
    )


@pytest.mark.parametrize("arguments", [["--version"], ["plan", "show", "--model", "vitt16"]])
def test_nobody_reads_the_output(arguments: list[str]) -> None:
    """As with `| head`: quiet, also when the interpreter ends."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="closes a file descriptor in a shell")
def test_closed_output() -> None:
    command = ["sh", "-c", 'exec "$0" "$@" >&-', *COMMAND, "plan", "show", "--model", "vitt16"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(28, "No space left on device"), 5, "broke off: No space left on device: free some space"),
        (OSError(28, "No space left on device", "a.csv"), 2, "'a.csv': No space left on device: free some"),
        (OSError(36, "File name too long", "x" * 5000), 2, "File name too long: check the path"),
        (OSError(5, "Input/output error"), 5, "broke off: Input/output error"),
        (OSError("no\nnumber"), 5, "broke off: no number"),
        (InputError("two\nlines"), 2, "two lines"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 3, "not enough memory: free some"),
        (
            RuntimeError("[enforce] DefaultCPUAllocator:\nnot enough memory: you tried"),
            3,
            "not enough memory (",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried" + " x" * 900), 3, "not enough memory (CUDA"),
    ],
)
def test_a_failure_is_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    def work() -> None:
        raise error

    assert script.exit_code("prog", work) == code
    (found,) = stderr_lines(capsys)
    assert found.startswith("prog: error: ")
    assert line in found
    assert len(found) < 350


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["plan", "show", "--model", ""], "model '': give a checkpoint file"),
        (["demo", "--model", "", "--out", "made"], "model '': give a checkpoint file"),
        (["plan", "show", "--model", "x" * 5000], "File name too long: check the path"),
        (["plan", "show", "--model", "vitt" + "9" * 5000], "File name too long: check the path"),
        (["plan", "show", "--stack", ""], "unknown stack ''"),
        (["nonsense\nof two lines"], "No such command"),
        ([], "no command given"),
    ],
)
def test_refused_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    match: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    (line,) = stderr_lines(capsys)
    assert match in line
    assert not any(tmp_path.iterdir())


def test_warnings_are_lines_however_narrow_the_terminal(tmp_path: Path, small_checkpoint: Checkpoint) -> None:
    source = tmp_path / ("a_long_name_" * 8 + ".pth")
    torch.save(small_checkpoint.weights, source)
    done = subprocess.run(
        [*COMMAND, "convert", str(source), str(tmp_path / "a.safetensors")],
        env=os.environ | {"COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    # What a bare state dictionary doesn't say: joint blocks, classes, normalisation, image size.
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"fasteomt: warning: {source}: ") for line in lines)
    assert done.stdout.count("\n") == 1


def test_tables_are_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["plan", "show", "--model", "vitt16", "--upstream"]) == 0
    title, *table = capsys.readouterr().out.splitlines()
    stack = "stack fp32 (plain fp32, the reference; TF32 is off) on cpu"
    assert title.startswith(f"dinov3/vitt16-eomt, {stack}, plan ")
    rows = [line.split("│")[1:-1] for line in table if line.startswith("│")]
    first = [cell.strip() for cell in rows[0]]
    assert first == ["frame.prep", "resize+normalise+crop", "reference", "fp32", "preprocess_image"]
    assert all(row[0].strip() for row in rows)


def test_other_failures_are_not_taken_for_want_of_memory() -> None:
    def work() -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes"):
        script.exit_code("prog", work)


SLOW = """
import sys, time
from fasteomt.cli.script import exit_code
def work():
    try:
        print("running", flush=True)
        time.sleep(60)
    finally:
        print("tidying", flush=True)
        time.sleep(1)
        print("tidy", flush=True)
sys.exit(exit_code("prog", work))
"""


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_several_signals_are_one(number: signal.Signals) -> None:
    """SIGTERM is as Ctrl-C, and more of either doesn't break off what the first one began."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(number)
        assert process.stdout.readline() == "tidying\n"
        for other in (signal.SIGINT, signal.SIGTERM, number):
            process.send_signal(other)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "tidy\n", "prog: error: interrupted\n")


def test_handlers_are_put_back() -> None:
    """The command line may be called from within another program."""
    end_interrupt_once()  # of a test above: a program that was interrupted keeps its handlers to the end
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert script.exit_code("prog", lambda: None) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
