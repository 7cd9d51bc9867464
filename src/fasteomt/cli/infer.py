"""`fasteomt infer`: masks for videos and images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from fasteomt.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    ModelOption,
    OverwriteOption,
    named_path,
)
from fasteomt.cli.output import output
from fasteomt.errors import InterruptedRun, PartialResultError

if TYPE_CHECKING:
    from fasteomt.predictor import Predictor
    from fasteomt.video.inputs import Input
    from fasteomt.video.source import Selection
    from fasteomt.video.summary import Progress as State
    from fasteomt.video.summary import Summary


def infer(
    inputs: Annotated[
        list[str], typer.Argument(help="Videos, images, folders of either, or globs.", show_default=False)
    ],
    model: ModelOption = DEFAULT_MODEL,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            parser=named_path,
            metavar="<path>",
            help="Parent of the output folders, one for each input.",
        ),
    ] = Path("out"),
    device: DeviceOption = "auto",
    stack: Annotated[
        str,
        typer.Option(
            "--stack",
            help="Arithmetic to run: fp32, bf16, fp16, ...; auto: the fastest that passed its gates.",
        ),
    ] = "fp32",
    save: Annotated[
        str,
        typer.Option(
            "--save", help="What to write: masks, overlay, areas, masks-png, comma-separated; summary always."
        ),
    ] = "masks,overlay,areas",
    start: Annotated[float | None, typer.Option("--start", help="First second of the video.")] = None,
    end: Annotated[
        float | None, typer.Option("--end", help="Second to stop before, from the video's start.")
    ] = None,
    stride: Annotated[int, typer.Option("--stride", help="Take every STRIDE-th frame.")] = 1,
    overwrite: OverwriteOption = False,
) -> None:
    """Segment videos and images into OUT/NAME/{masks.mkv, overlay.mp4, areas.csv, summary.json}."""
    from fasteomt.video.run import check_inputs
    from fasteomt.video.source import Selection
    from fasteomt.video.summary import Summary

    selection = Selection(start, end, stride)
    wanted = [name.strip() for name in save.split(",") if name.strip()]
    found = check_inputs(inputs, out, wanted, overwrite, selection, model)

    from fasteomt import predictor as models

    predictor = models.load(model, device=device, stack=stack)
    summaries: list[Summary] = []
    partial: list[PartialResultError] = []
    console = Console(stderr=True)
    try:
        for one in found:
            try:
                summaries.append(_run(console, predictor, one, out, wanted, overwrite, selection))
            except PartialResultError as error:
                # The others still get their turn; the exit code tells at the end.
                partial.append(error)
                if isinstance(error.summary, Summary):
                    summaries.append(error.summary)
    except InterruptedRun as error:
        if isinstance(error.summary, Summary):
            summaries.append(error.summary)
        raise
    finally:
        if summaries:
            output().print(_table(summaries))
    if len(partial) == 1:
        raise partial[0]
    if partial:
        raise PartialResultError(f"{len(partial)} of {len(found)} inputs are incomplete: {partial[0]}")


def _run(
    console: Console,
    predictor: Predictor,
    one: Input,
    out: Path,
    save: list[str],
    overwrite: bool,
    selection: Selection,
) -> Summary:
    """One input, with a progress bar on standard error."""
    from fasteomt.video.run import run_video

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[frames]} frames"),
        TextColumn("{task.fields[fps]:.1f} fps"),
        TextColumn("{task.fields[eta]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(one.name), total=None, frames=0, fps=0.0, eta="")

        def show(state: State) -> None:
            _update(bar, task, state)

        return run_video(
            predictor,
            one,
            out,
            save,
            overwrite,
            start=selection.start,
            end=selection.end,
            stride=selection.stride,
            progress=show,
        )


def _update(bar: Progress, task: TaskID, state: State) -> None:
    eta = "" if state.eta is None else f"ETA {_clock(state.eta)}"
    total = None if state.fraction is None else 1.0
    bar.update(task, total=total, completed=state.fraction or 0, frames=state.frames, fps=state.fps, eta=eta)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _table(summaries: list[Summary]) -> Table:
    table = Table("input", "in", "out", "skipped", "fps", "complete", "written to", box=None)
    for one in summaries:
        files = ", ".join([*one.outputs.values(), "summary"]) if one.outputs else "nothing"
        table.add_row(
            escape(Path(one.source).name),
            str(one.frames_in),
            str(one.frames_out),
            str(one.skipped),
            f"{one.fps:.1f}",
            "yes" if one.complete else "no",
            f"{escape(one.folder)} ({escape(files)})",
        )
    return table
