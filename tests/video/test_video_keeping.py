"""What is there stays there: earlier results, sources and strangers' files, whatever goes wrong in a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import RedPredictor, encode, number_in, numbered, picture, read_overlay
from PIL import Image

from fasteomt.errors import FastEomtError, InputError, InterruptedRun, PartialResultError
from fasteomt.video import read_masks, run_video
from fasteomt.video.run import check_inputs
from fasteomt.video.sink import AreasSink, MaskSink, Sink


def test_existing_output_is_left_alone(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 2)
    (tmp_path / "out/a").mkdir(parents=True)
    (tmp_path / "out/a/notes.txt").write_text("mine")
    predictor = RedPredictor()
    with pytest.raises(InputError, match="--overwrite"):
        run_video(predictor, clip, tmp_path / "out")
    assert predictor.seen == []
    assert [p.name for p in (tmp_path / "out/a").iterdir()] == ["notes.txt"]
    run_video(predictor, clip, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/a/notes.txt").read_text() == "mine"


def test_earlier_result_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 5)
    folder = tmp_path / "out/a"
    run_video(RedPredictor(), clip, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(PartialResultError):
        run_video(RedPredictor(fail_at=3), clip, tmp_path / "out", overwrite=True)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert json.loads((folder / "summary.partial.json").read_text())["complete"] is False
    assert len(list(read_masks(folder / "masks.partial.mkv"))) == 3

    run_video(RedPredictor(), clip, tmp_path / "out", overwrite=True, stride=2, save=("masks",))
    assert sorted(p.name for p in folder.iterdir()) == ["masks.mkv", "summary.json"]
    assert len(list(read_masks(folder / "masks.mkv"))) == 3


def test_failure_keeps_what_was_done(tmp_path: Path) -> None:
    """Exit 5 with the frame's number; every output playable; the cause is chained."""
    clip = numbered(tmp_path / "a.mp4", 9)
    with pytest.raises(PartialResultError, match=r"a\.mp4: frame 6: RuntimeError: out of luck") as caught:
        run_video(RedPredictor(fail_at=6), clip, tmp_path / "out")
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)
    folder = tmp_path / "out/a"
    names = ["areas.partial.csv", "masks.partial.mkv", "overlay.partial.mp4", "summary.json"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert [number_in(m * 255) for _, m in read_masks(folder / "masks.partial.mkv")] == list(range(6))
    assert [number_in(m[..., 0]) for _, m in read_overlay(folder / "overlay.partial.mp4")] == list(range(6))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["complete"], summary["frames_in"], summary["frames_out"]) == (False, 7, 6)
    assert "frame 6" in summary["reason"]


def test_failure_of_an_output_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fasteomt.video.sink import OverlaySink

    clip = numbered(tmp_path / "a.mp4", 6)
    real = OverlaySink.write

    def write_until_full(self: OverlaySink, frame: Any, result: Any) -> None:
        if frame.index == 4:
            raise OSError(28, "No space left on device")
        real(self, frame, result)

    monkeypatch.setattr(OverlaySink, "write", write_until_full)
    with pytest.raises(PartialResultError, match=r"frame 4.*No space left"):
        run_video(RedPredictor(), clip, tmp_path / "out")
    assert len(read_overlay(tmp_path / "out/a/overlay.partial.mp4")) == 4


def test_failure_of_the_first_frame_leaves_a_summary(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 2)
    with pytest.raises(PartialResultError, match="frame 0"):
        run_video(RedPredictor(fail_at=0), clip, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out/a").iterdir()] == ["summary.json"]


def test_size_that_changes_within_a_file(tmp_path: Path) -> None:
    """What came before is kept; the message names the frame and both sizes."""
    first = numbered(tmp_path / "a.ts", 5, 64, 48)
    second = numbered(tmp_path / "b.ts", 5, 96, 64)
    joined = tmp_path / "j.ts"
    joined.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(PartialResultError, match="96x64, those before are 64x48") as caught:
        run_video(RedPredictor(), joined, tmp_path / "out")
    assert str(caught.value).count(str(joined)) == 1
    masks = [number_in(m * 255) for _, m in read_masks(tmp_path / "out/j/masks.partial.mkv")]
    assert masks == list(range(len(masks))) and len(masks) >= 4


def test_output_that_is_a_file(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 1)
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="out is not a folder"):
        run_video(RedPredictor(), clip, tmp_path / "out")


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_summary_that_can_not_be_replaced_is_found_first(tmp_path: Path) -> None:
    """Not after the work; and a pipe with its name is no earlier result to wait for."""
    clip = numbered(tmp_path / "a.mp4", 1)
    (tmp_path / "out/a/summary.json").mkdir(parents=True)
    predictor = RedPredictor()
    with pytest.raises(InputError, match=r"summary\.json is a folder"):
        run_video(predictor, clip, tmp_path / "out", overwrite=True)
    (tmp_path / "out/a/summary.json").rmdir()
    os.mkfifo(tmp_path / "out/a/summary.json")
    with pytest.raises(InputError, match="not a regular file"):
        run_video(predictor, clip, tmp_path / "out", overwrite=True)
    assert predictor.seen == []


@pytest.mark.parametrize("named", ["file", "link", "link to folder"])
def test_run_never_replaces_its_source(named: str, tmp_path: Path) -> None:
    """By whichever name: --out leads back to the video's own folder."""
    folder = tmp_path / "s/overlay"
    folder.mkdir(parents=True)
    clip = numbered(folder / "overlay.mp4", 2)
    before = clip.read_bytes()
    spec = clip
    if named == "link":
        spec = tmp_path / "overlay.mp4"
        spec.symlink_to(clip)
    if named == "link to folder":
        (tmp_path / "t").symlink_to(tmp_path / "s")
        spec = tmp_path / "t/overlay/overlay.mp4"
    predictor = RedPredictor()
    with pytest.raises(InputError, match=r"overlay\.mp4 is a source"):
        run_video(predictor, spec, tmp_path / "s", overwrite=True)
    assert predictor.seen == []
    assert (clip.read_bytes(), [path.name for path in folder.iterdir()]) == (before, ["overlay.mp4"])
    # Outputs that leave the source alone may lie beside it.
    assert run_video(predictor, spec, tmp_path / "s", save=("masks",), overwrite=True).complete
    assert clip.read_bytes() == before


def test_source_that_an_earlier_result_lists_is_kept(tmp_path: Path) -> None:
    """Such a file is removed as obsolete even by a run that writes nothing of its name."""
    clip = numbered(tmp_path / "masks.mp4", 2)
    run_video(RedPredictor(), clip, tmp_path, save=("masks",))
    with pytest.raises(InputError, match=r"masks\.mkv is a source"):
        run_video(RedPredictor(), tmp_path / "masks/masks.mkv", tmp_path, save=("areas",), overwrite=True)
    assert len(list(read_masks(tmp_path / "masks/masks.mkv"))) == 2


def test_source_of_another_input_is_kept(tmp_path: Path) -> None:
    """All inputs of a run are looked at together, before the first is begun."""
    (tmp_path / "s/a").mkdir(parents=True)
    first, other = numbered(tmp_path / "a.mp4", 2), numbered(tmp_path / "s/a/masks.mkv", 2)
    with pytest.raises(InputError, match=r"masks\.mkv is a source"):
        check_inputs([first, other], tmp_path / "s", overwrite=True)
    check_inputs([first, other], tmp_path / "s", save=("areas",), overwrite=True)


def test_frames_that_are_all_but_lines_are_refused(tmp_path: Path) -> None:
    """Before a folder is made: their crops would fill the memory."""
    images = [np.zeros((2, 600, 3), np.uint8)] * 2
    clip = encode(tmp_path / "a.mkv", images)
    with pytest.raises(InputError, match=r"a\.mkv: a frame of 600x2 pixels makes 300 crops, more than 256"):
        run_video(RedPredictor(), clip, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_source_errors_are_of_the_project(tmp_path: Path) -> None:
    with pytest.raises(FastEomtError, match="no such file"):
        run_video(RedPredictor(), tmp_path / "none.mp4", tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Meddling(RedPredictor):
    """Does something else while the last frame is worked on."""

    def __init__(self, at: int, work: Callable[[], object]) -> None:
        super().__init__()
        self.at, self.work = at, work

    def predict_rgb(self, frame: np.ndarray, pts: float | None = None) -> Any:
        if len(self.seen) == self.at:
            self.work()
        return super().predict_rgb(frame, pts)


def test_of_two_runs_into_one_folder_one_wins(tmp_path: Path) -> None:
    """The other one ends with exit 2 and leaves nothing, whatever each saves."""
    clip = numbered(tmp_path / "a.mp4", 3)
    folder = tmp_path / "out/a"
    first = RedPredictor()
    second = Meddling(2, lambda: run_video(first, clip, tmp_path / "out", save=("areas",)))
    with pytest.raises(InputError, match="left alone"):
        run_video(second, clip, tmp_path / "out", save=("masks",))
    assert sorted(p.name for p in folder.iterdir()) == ["areas.csv", "summary.json"]
    assert json.loads((folder / "summary.json").read_text())["outputs"] == {"areas": "areas.csv"}


def test_what_a_crash_left_is_no_result(tmp_path: Path) -> None:
    """Temporary files of a process that was killed make no later run fail."""
    clip = numbered(tmp_path / "a.mp4", 1)
    (tmp_path / "out/a/.masks.12.tmp").mkdir(parents=True)
    (tmp_path / "out/a/.areas.12.tmp.csv").write_text("")
    assert run_video(RedPredictor(), clip, tmp_path / "out", save=("masks-png", "areas")).complete


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("name", ["summary.json", "summary.partial.json"])
def test_summary_that_is_a_link_is_refused_first(name: str, tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 1)
    (tmp_path / "out/a").mkdir(parents=True)
    (tmp_path / "mine.json").write_text("mine")
    (tmp_path / "out/a" / name).symlink_to(tmp_path / "mine.json")
    predictor = RedPredictor()
    with pytest.raises(InputError, match="is a link"):
        run_video(predictor, clip, tmp_path / "out", overwrite=True)
    assert (predictor.seen, (tmp_path / "mine.json").read_text()) == ([], "mine")


@pytest.mark.parametrize("earlier", [None, 2])
def test_run_without_a_frame_leaves_an_earlier_result(earlier: int | None, tmp_path: Path) -> None:
    """A whole one, and a part of one."""
    clip = numbered(tmp_path / "a.mp4", 4)
    with contextlib.suppress(PartialResultError):
        run_video(RedPredictor(fail_at=earlier), clip, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out/a").iterdir()}
    assert len(before) == 4
    with pytest.raises(PartialResultError, match="nothing could be kept"):
        run_video(RedPredictor(fail_at=0), clip, tmp_path / "out", overwrite=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out/a").iterdir()} == before


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_outputs_are_closed_cost_nothing(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first, which stops the run, more come within `finish` and `commit`."""
    clip = numbered(tmp_path / "a.mp4", 6)
    for cls, name in ((MaskSink, "finish"), (AreasSink, "finish"), (Sink, "commit")):
        real = getattr(cls, name)

        def ask_again(self: Sink, *arguments: Any, real: Any = real) -> None:
            for _ in range(3):
                os.kill(os.getpid(), number)
            real(self, *arguments)

        monkeypatch.setattr(cls, name, ask_again)
    with pytest.raises(InterruptedRun, match="3 frames kept"):
        run_video(Meddling(2, lambda: os.kill(os.getpid(), number)), clip, tmp_path / "out")
    names = ["areas.partial.csv", "masks.partial.mkv", "overlay.partial.mp4", "summary.json"]
    assert sorted(p.name for p in (tmp_path / "out/a").iterdir()) == names


def test_the_model_is_never_replaced(tmp_path: Path) -> None:
    clip = numbered(tmp_path / "a.mp4", 1)
    run_video(RedPredictor(), clip, tmp_path, save=("masks-png",))
    model = tmp_path / "a/masks/m.pt"
    model.write_text("weights")
    predictor = RedPredictor()
    predictor.source = str(model)
    with pytest.raises(InputError, match=r"m\.pt is a source or the model"):
        check_inputs(clip, tmp_path, ("masks-png",), overwrite=True, model=str(model))
    with pytest.raises(InputError, match=r"m\.pt is a source or the model"):
        run_video(predictor, clip, tmp_path, save=("masks-png",), overwrite=True)
    assert model.read_text() == "weights"


def test_full_disk_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that never reached the disk aren't kept, nor is a summary; and what helps is said."""
    clip = numbered(tmp_path / "a.mp4", 3)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    def lose(self: AreasSink) -> None:
        self._file.close()
        self.temporary.write_text("")
        full()

    monkeypatch.setattr(AreasSink, "finish", lose)
    monkeypatch.setattr("fasteomt.video.output.write_json", full)
    with pytest.raises(PartialResultError, match=r"nothing could be kept in .*: free some space"):
        run_video(RedPredictor(), clip, tmp_path / "one", save=("areas",))
    assert not any((tmp_path / "one/a").iterdir())
    with pytest.raises(
        PartialResultError, match=r"at most 3 frames kept in .*, without a summary: free some"
    ):
        run_video(RedPredictor(), clip, tmp_path / "two", save=("areas", "masks"))
    assert [p.name for p in (tmp_path / "two/a").iterdir()] == ["masks.partial.mkv"]


def test_rows_that_a_full_disk_cut_are_whole_again(tmp_path: Path) -> None:
    sink = AreasSink(tmp_path / "areas.csv")
    sink.finish()
    for text, readable, kept in (("", False, ""), ("a,b\n", False, "a,b\n"), ("a\n1\n2", True, "a\n1\n")):
        sink.temporary.write_bytes(text.encode())
        assert (sink.readable(), sink.temporary.read_bytes()) == (readable, kept.encode())


@pytest.mark.skipif(os.name != "posix", reason="names of 255 bytes")
def test_image_names_too_long_for_outputs_are_found_first(tmp_path: Path) -> None:
    """Two that differ in their suffix alone have it in their outputs' names, and '.png' behind it."""
    (tmp_path / "s").mkdir()
    for suffix in (".png", ".bmp"):
        Image.fromarray(picture(1)).save(tmp_path / "s" / ("x" * 250 + suffix))
    predictor = RedPredictor()
    with pytest.raises(InputError, match="more than 255 bytes: rename"):
        check_inputs(tmp_path / "s", tmp_path / "out")
    with pytest.raises(InputError, match="more than 255 bytes: rename"):
        run_video(predictor, tmp_path / "s", tmp_path / "out")
    assert predictor.seen == [] and not (tmp_path / "out").exists()
    assert run_video(predictor, tmp_path / "s", tmp_path / "out", save=("areas",)).complete
