"""`fasteomt infer`: exit codes, messages, tables, and stopping by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

VIDEO_TESTS = Path(__file__).parents[1] / "video"
sys.path.insert(0, str(VIDEO_TESTS))

from clips import RedPredictor, cut, number_in, numbered, picture  # noqa: E402

from fasteomt.cli.main import main  # noqa: E402
from fasteomt.video import read_masks, write  # noqa: E402

Infer = Callable[..., int]


@pytest.fixture
def predictor() -> RedPredictor:
    return RedPredictor()


@pytest.fixture
def infer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predictor: RedPredictor) -> Infer:
    """Runs `fasteomt infer ... --out OUT` with a predictor that needs no model."""
    monkeypatch.setattr("fasteomt.predictor.load", lambda model, **options: predictor)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: object) -> int:
        return main(["infer", *map(str, arguments), "--out", str(tmp_path / "out")])

    return run


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a failure prints."""
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1, lines
    return lines[0]


def test_several_inputs(infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of videos and an image: one output folder each, and a table."""
    (tmp_path / "clips").mkdir()
    numbered(tmp_path / "clips/one.mp4", 4)
    numbered(tmp_path / "clips/two.mkv", 3)
    assert infer(tmp_path / "clips") == 0
    for name, count in (("one", 4), ("two", 3)):
        assert len(list(read_masks(tmp_path / f"out/{name}/masks.mkv"))) == count
        assert json.loads((tmp_path / f"out/{name}/summary.json").read_text())["frames_out"] == count
    printed = capsys.readouterr().out
    assert "one.mp4" in printed and "two.mkv" in printed and "yes" in printed
    assert "masks.mkv, overlay.mp4, areas.csv" in printed


def test_options_reach_the_run(infer: Infer, tmp_path: Path, predictor: RedPredictor) -> None:
    clip = numbered(tmp_path / "a.mp4", 50)
    assert infer(clip, "--start", 0.4, "--end", 1.2, "--stride", 5, "--save", "areas, masks-png") == 0
    assert predictor.seen == [10, 15, 20, 25]
    assert sorted(p.name for p in (tmp_path / "out/a").iterdir()) == ["areas.csv", "masks", "summary.json"]


def test_bad_input_is_found_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, one line, nothing written, no model loaded: even if only the last input is bad."""

    def never(model: str, **options: str) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("fasteomt.predictor.load", never)
    good = numbered(tmp_path / "good.mp4", 2)
    (tmp_path / "bad.mp4").write_text("not a video " * 50)
    (tmp_path / "full/good").mkdir(parents=True)
    (tmp_path / "full/good/mine.txt").write_text("mine")
    out = ["--out", str(tmp_path / "out")]
    for arguments, code, text in (
        ([str(good), str(tmp_path / "bad.mp4"), *out], 2, "bad.mp4"),
        ([str(good), str(tmp_path / "none.mp4"), *out], 2, "no such file"),
        ([str(good), "--out", str(tmp_path / "full")], 2, "--overwrite"),
        ([str(good), "--save", "mask", *out], 2, "choose from masks, overlay"),
        ([str(good), "--start", "9", *out], 2, "no frame from 9 s"),
        ([str(good), "--stride", "0", *out], 2, "stride"),
        (["x" * 5000, *out], 2, "name too long"),
        ([*out], 2, "Missing argument"),
    ):
        assert main(["infer", *arguments]) == code
        assert text in error_line(capsys)
    monkeypatch.setitem(write._ENCODERS, "h264", ("libnothere264", "yuv420p"))
    assert main(["infer", str(good), *out]) == 3
    assert "libnothere264" in error_line(capsys)
    assert not (tmp_path / "out").exists()
    assert [p.name for p in (tmp_path / "full/good").iterdir()] == ["mine.txt"]


def test_broken_input_does_not_stop_the_others(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 5 at the end, the whole one complete, the cut one under partial names."""
    cut(numbered(tmp_path / "whole.mkv", 30), tmp_path / "cut.mkv", 0.7)
    assert infer(tmp_path / "cut.mkv", tmp_path / "whole.mkv") == 5
    captured = capsys.readouterr()
    assert "cut.mkv: the file ends at byte" in captured.err
    assert "frames kept in" in captured.err
    assert (tmp_path / "out/cut/masks.partial.mkv").exists()
    assert (tmp_path / "out/whole/masks.mkv").exists()


def test_existing_output_needs_overwrite(infer: Infer, tmp_path: Path, predictor: RedPredictor) -> None:
    clip = numbered(tmp_path / "a.mp4", 2)
    assert infer(clip) == 0
    assert infer(clip) == 2
    assert infer(clip, "--overwrite") == 0
    assert predictor.seen == [0, 1, 0, 1]


def test_image_that_can_not_be_used_leaves_nothing(
    infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, its path once, no output folder and no parent of one. A JPEG's header alone looks whole."""
    for name in ("a.png", "a.jpg"):
        Image.fromarray(picture(1)).save(tmp_path / "whole", format="JPEG" if name.endswith("jpg") else "PNG")
        cut(tmp_path / "whole", tmp_path / name, 0.6)
        assert infer(tmp_path / name) == 2
        assert error_line(capsys).count(name) == 1
    assert not (tmp_path / "out").exists()


def test_empty_names_are_refused(infer: Infer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a shell variable that isn't set; they would mean the current folder."""
    clip = numbered(tmp_path / "a.mp4", 1)
    assert infer("") == 2
    assert "an input is empty" in error_line(capsys)
    for command in (["infer", str(clip)], ["demo"]):
        assert main([*command, "--out", ""]) == 2
        assert "'--out' / '-o': it is empty" in error_line(capsys)


def test_nothing_is_lost_by_overwriting(
    infer: Infer, tmp_path: Path, predictor: RedPredictor, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source among the targets, and a folder of the user's: refused before the model is run."""
    (tmp_path / "out/overlay").mkdir(parents=True)
    clip = numbered(tmp_path / "out/overlay/overlay.mp4", 2)
    before = clip.read_bytes()
    assert infer(clip, "--overwrite") == 2
    assert "overlay.mp4 is a source" in error_line(capsys)
    (tmp_path / "out/valid/masks").mkdir(parents=True)
    Image.fromarray(picture(1)).save(tmp_path / "out/valid/a.png")
    assert infer(tmp_path / "out/valid", "--overwrite") == 2
    assert "masks is not of an earlier result" in error_line(capsys)
    assert (predictor.seen, clip.read_bytes()) == ([], before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of any bytes")
def test_names_that_are_no_text_are_printed(tmp_path: Path) -> None:
    """Where the terminal has ASCII alone, too: the progress, the table and messages."""
    clip = numbered(tmp_path / "plain.mp4", 21).rename(tmp_path / os.fsdecode(b"clip\xff \xc3\xa4.mp4"))
    command = [sys.executable, "-c", SLOW.format(tests=str(VIDEO_TESTS)), "infer", "--out", tmp_path / "out"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict", "COLUMNS": "300"}
    done = subprocess.run([*command, clip], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0), done.stderr
    assert rb"clip\udcff \xe4.mp4" in done.stdout
    summary = json.loads((tmp_path / "out" / clip.stem / "summary.json").read_text(encoding="utf-8"))
    assert (summary["source"], summary["frames_out"]) == (str(clip), 21)
    again = subprocess.run([*command, clip], capture_output=True, env=environment, check=False)
    assert again.returncode == 2
    assert again.stderr.count(b"\n") == 1 and rb"clip\udcff" in again.stderr


SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
import fasteomt.predictor
from clips import RedPredictor

class Slow(RedPredictor):
    def predict_rgb(self, frame, pts=None):
        time.sleep(0.01)
        if len(self.seen) == 20:
            print("running", flush=True)
        return super().predict_rgb(frame, pts)

fasteomt.predictor.load = lambda model, **options: Slow()
from fasteomt.cli.main import run
run()
"""


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_leaves_a_playable_part(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM: exit 130, partial names, whole files, an honest summary, an earlier result kept."""
    clip = numbered(tmp_path / "a.mp4", 250)
    folder = tmp_path / "out/a"
    folder.mkdir(parents=True)
    (folder / "masks.mkv").write_text("earlier")
    (folder / "summary.json").write_text('{"complete": true, "outputs": {"masks": "masks.mkv"}}')
    script = SLOW.format(tests=str(VIDEO_TESTS))
    command = [
        sys.executable,
        "-c",
        script,
        "infer",
        str(clip),
        "--out",
        str(tmp_path / "out"),
        "--overwrite",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"interrupted by {number.name}" in errors and "Traceback" not in errors

    masks = [number_in(mask * 255) for _, mask in read_masks(folder / "masks.partial.mkv")]
    assert 20 <= len(masks) < 250 and masks == list(range(len(masks)))
    with av.open(str(folder / "overlay.partial.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == len(masks)
    assert len((folder / "areas.partial.csv").read_text().splitlines()) == 1 + 2 * len(masks)
    summary = json.loads((folder / "summary.partial.json").read_text())
    assert (summary["complete"], summary["frames_out"]) == (False, len(masks))
    assert (folder / "masks.mkv").read_text() == "earlier"
    assert not [p for p in folder.iterdir() if ".tmp" in p.name]


def test_a_real_model_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alias of the smallest architecture: seeded random weights, all outputs."""
    monkeypatch.setenv("COLUMNS", "200")
    clip = numbered(tmp_path / "a.mp4", 3, 96, 64)
    arguments = ["--model", "vitt16", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(["infer", str(clip), *arguments]) == 0
    folder = tmp_path / "out/a"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["frames_in"], summary["frames_out"], summary["complete"]) == (3, 3, True)
    assert (summary["stack"], summary["device"]) == ("fp32", "cpu")
    masks = [mask for _, mask in read_masks(folder / "masks.mkv")]
    assert [mask.shape for mask in masks] == [(64, 96)] * 3
    assert set(np.unique(masks)) <= {int(class_id) for class_id in summary["classes"]}


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_many_signals_keep_the_part_and_are_told_once(number: signal.Signals, tmp_path: Path) -> None:
    """A user who keeps pressing Ctrl-C: exit 130, one line, the part named, nothing hidden."""
    clip = numbered(tmp_path / "a.mp4", 250)
    command = [sys.executable, "-c", SLOW.format(tests=str(VIDEO_TESTS)), "infer", str(clip)]
    command += ["--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.002)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    assert len([line for line in errors.splitlines() if "error:" in line]) == 1 and "Traceback" not in errors
    assert "frames kept" in errors
    names = ["areas.partial.csv", "masks.partial.mkv", "overlay.partial.mp4", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "out/a").iterdir()) == names
