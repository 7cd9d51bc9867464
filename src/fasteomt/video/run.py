"""A source through a predictor into files."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fasteomt.errors import FastEomtError, InputError, InterruptedRun, PartialResultError
from fasteomt.video.inputs import Input, find_inputs, open_input
from fasteomt.video.output import OutputFolder, check_save
from fasteomt.video.signals import StopRequest, stop_on_signals
from fasteomt.video.sink import Sink
from fasteomt.video.source import Frame, Selection, Source, Spec
from fasteomt.video.summary import Progress, Summary, versions

if TYPE_CHECKING:
    from fasteomt.predictor import Predictor

DEFAULT_SAVE = ("masks", "overlay", "areas")
_LONGEST_NAME = 255  # bytes, of a file on all usual systems


def check_inputs(
    spec: Spec,
    out_dir: str | Path,
    save: Sequence[str] = DEFAULT_SAVE,
    overwrite: bool = False,
    selection: Selection | None = None,
    model: str | None = None,
) -> list[Input]:
    """Everything that can be found wrong before a model is loaded; writes nothing.

    `model` is what will be loaded: a file of it is not replaced either.

    Returns:
        The inputs, each for one `run_video`.

    Raises:
        InputError: an input that can't be read, two with the same output folder, or output in the way.
        UnsupportedError: an encoder is missing.
    """
    inputs = find_inputs(spec)
    check_save(save, for_video=any(one.kind == "video" for one in inputs))
    sources = [path for one in inputs for path in one.paths] + _model_files(model)
    for one in inputs:
        OutputFolder(out_dir, one.name, one.kind, save).check(sources, overwrite=overwrite)
        _check_names(one, save, selection or Selection())
    for one in inputs:
        open_input(one, selection or Selection()).close()
    return inputs


def run_video(
    predictor: Predictor,
    source_spec: Spec | Input,
    out_dir: str | Path,
    save: Sequence[str] = DEFAULT_SAVE,
    overwrite: bool = False,
    start: float | None = None,
    end: float | None = None,
    stride: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Segment one video, or one set of images, into `out_dir/<name>`.

    Args:
        predictor: what `fasteomt.load` returns.
        source_spec: a video, an image, a folder of images or a glob, if it stands for one input.
        out_dir: parent of the output folder.
        save: any of "masks", "overlay", "areas", "masks-png"; summary.json is always written.
        overwrite: replace an earlier result, once the new one is complete.
        start, end: seconds; `stride`: take every stride-th frame.
        progress: called after each frame.

    Returns:
        The summary of a complete run.

    Raises:
        InputError: bad input or usage, or output in the way; nothing was written.
        UnsupportedError: an encoder is missing or refuses the frames; nothing was written.
        PartialResultError: frames are missing in the source, or something failed; what was finished is kept
            as *.partial.* files. InterruptedRun: the same after SIGINT or SIGTERM. Both carry the
            `Summary` as their attribute `summary`.
    """
    selection = Selection(start, end, stride)
    one = source_spec if isinstance(source_spec, Input) else _only(find_inputs(source_spec))
    check_save(save, for_video=one.kind == "video")
    folder = OutputFolder(out_dir, one.name, one.kind, save)
    folder.check([*one.paths, *_model_files(predictor.source)], overwrite=overwrite)
    _check_names(one, save, selection)
    with open_input(one, selection) as source:
        sinks = folder.open_sinks(source, predictor.spec.class_ids)
        return _Run(predictor, source, folder, sinks, selection, progress).run()


def _model_files(model: str | None) -> list[Path]:
    """The file that a model's name or description stands for, if it is one."""
    return [Path(model)] if model and os.path.isfile(model) else []


def _check_names(one: Input, save: Sequence[str], selection: Selection) -> None:
    """Raise InputError for an image whose PNG file would have too long a name."""
    if one.kind != "images" or not set(save) - {"areas"}:
        return
    from fasteomt.video.images import output_names

    for name in output_names(one.paths[:: selection.stride]):
        file = f"{name}.png"
        if len(os.fsencode(file)) > _LONGEST_NAME:
            raise InputError(
                f"{one.location}: the output {file[:40]}... of an image would have a name of more than "
                f"{_LONGEST_NAME} bytes: rename the image"
            )


class _Run:
    """One input on its way through; `run` is called once."""

    def __init__(
        self,
        predictor: Predictor,
        source: Source,
        folder: OutputFolder,
        sinks: dict[str, Sink],
        selection: Selection,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._predictor, self._source, self._folder, self._sinks = predictor, source, folder, sinks
        self._progress = progress
        self._first_pts: float | None = None
        self._last_pts: float | None = None
        self._notes = [] if predictor.note is None else [predictor.note]
        self._cut_short = False
        self._unfinished = False
        self._begin = time.monotonic()
        self._summary = Summary(
            source=source.location,
            folder=str(folder.path),
            model=predictor.spec.name,
            checkpoint=predictor.source,
            stack=predictor.stack.name,
            device=str(predictor.device),
            classes=predictor.spec.names,
            width=source.width,
            height=source.height,
            frame_rate=None if source.fps is None else float(source.fps),
            versions=versions(),
            **asdict(selection),
        )

    def run(self) -> Summary:
        with stop_on_signals() as stop:
            failure: BaseException | None = None
            try:
                self._frames(stop)
                stop.finishing = True
            except BaseException as error:
                stop.finishing = True
                failure = error
            failure = self._finish(failure, stop)
        summary = self._summary
        told = f"{summary.source}: {summary.reason}: {self._kept()}{_remedy(failure)}"
        if self._cut_short or isinstance(failure, KeyboardInterrupt):
            raise _with(InterruptedRun(told), summary) from failure
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        if not summary.complete:
            raise _with(PartialResultError(told), summary) from failure
        if stop.name is not None:
            # Asked for after the last frame: this result is whole, but there shall be no next one.
            raise KeyboardInterrupt
        return summary

    def _frames(self, stop: StopRequest) -> None:
        with closing(iter(self._source)) as frames:  # type: ignore[type-var]
            for frame in frames:
                if stop.name is not None:
                    self._cut_short = True
                    return
                self._frame(frame)

    def _frame(self, frame: Frame) -> None:
        summary = self._summary
        summary.frames_in += 1
        try:
            result = self._predictor.predict_rgb(frame.rgb, frame.pts)
            for sink in self._sinks.values():
                sink.write(frame, result)
        except Exception as error:
            raise _FrameError(f"frame {frame.index}: {_text(error)}") from error
        summary.frames_out += 1
        if self._first_pts is None:
            self._first_pts = frame.pts
        self._last_pts = frame.pts
        if self._progress is not None:
            self._progress(self._state())

    def _state(self) -> Progress:
        source, done = self._source, self._summary.frames_out
        seconds = time.monotonic() - self._begin
        fraction: float | None = None
        if source.count:
            fraction = done / source.count
        elif source.duration and self._last_pts is not None:
            # From times, not from the header's frame count, which is often wrong.
            fraction = min(1.0, (self._covered() or 0.0) / source.duration)
        eta = seconds * (1 - fraction) / fraction if fraction else None
        return Progress(source.name, done, fraction, done / seconds if seconds > 0 else 0.0, eta)

    def _covered(self) -> float | None:
        """Seconds of video from the first frame to the end of the last."""
        if self._first_pts is None or self._last_pts is None:
            return None
        return self._last_pts - self._first_pts + float(1 / (self._source.fps or 25))

    def _finish(self, failure: BaseException | None, stop: StopRequest) -> BaseException | None:
        """Close the outputs, name them and write the summary; returns what made the run incomplete."""
        summary, source = self._summary, self._source
        source.close()
        for name, sink in list(self._sinks.items()):
            try:
                sink.finish()
            except Exception as error:
                failure = failure or error
                self._unfinished = True
                if not sink.readable():
                    sink.discard()
                    del self._sinks[name]
        summary.decoded, summary.skipped = source.decoded, source.skipped
        summary.problems, summary.notes = list(source.problems), [*self._notes, *source.notes]
        covered = self._covered()
        summary.duration = None if covered is None else round(covered, 6)
        summary.seconds = round(time.monotonic() - self._begin, 3)
        summary.fps = round(summary.frames_out / max(summary.seconds, 1e-3), 3)
        reason = _reason(failure, stop.name if self._cut_short else None, summary.problems)
        # Messages name the source themselves.
        summary.reason = None if reason is None else reason.removeprefix(f"{summary.source}: ")
        summary.complete = summary.reason is None
        if summary.frames_out == 0:
            self._discard()
            self._sinks.clear()
        return self._put_in_place(failure)

    def _put_in_place(self, failure: BaseException | None) -> BaseException | None:
        summary, folder = self._summary, self._folder
        if not self._sinks and folder.has_summary():
            return failure  # an earlier result, even a part of one, is more than nothing
        if self._sinks:
            try:
                folder.claim()
            except InputError:
                self._discard()
                raise
        try:
            folder.commit(self._sinks, summary.outputs, complete=summary.complete)
            folder.write_summary(asdict(summary), complete=summary.complete)
        except (OSError, FastEomtError) as error:
            self._discard()
            folder.release()
            summary.complete, summary.reason = False, summary.reason or _text(error)
            return failure or error
        return failure

    def _discard(self) -> None:
        """Remove the outputs that have no name yet."""
        for sink in self._sinks.values():
            sink.discard()

    def _kept(self) -> str:
        summary = self._summary
        if not summary.outputs:
            return f"nothing could be kept in {summary.folder}"
        # What was on its way to a full disk when it failed is not in the files, though it was counted.
        most = "at most " if self._unfinished else ""
        without = "" if self._folder.has_summary() else ", without a summary"
        return f"{most}{summary.frames_out} frames kept in {summary.folder}{without}"


class _FrameError(FastEomtError):
    """A failure of the model or an output, with the frame's number."""


def _with(error: InterruptedRun | PartialResultError, summary: Summary) -> FastEomtError:
    error.summary = summary
    return error


def _reason(failure: BaseException | None, signal_name: str | None, problems: list[str]) -> str | None:
    if signal_name is not None:
        return f"interrupted by {signal_name}"
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted"
    if failure is not None:
        return _text(failure)
    return "; ".join(problems) or None


def _remedy(failure: BaseException | None) -> str:
    while failure is not None:
        if getattr(failure, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return ": free some space and run it again"
        failure = failure.__cause__ or failure.__context__
    return ""


def _text(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, FastEomtError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _only(inputs: list[Input]) -> Input:
    if len(inputs) > 1:
        names = ", ".join(one.location for one in inputs[:3])
        raise InputError(f"{len(inputs)} inputs ({names}, ...): run them one at a time")
    return inputs[0]
