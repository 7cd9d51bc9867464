"""`fasteomt gate`: are a stack's masks still the model's?"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fasteomt.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    ModelOption,
    OverwriteOption,
    StackOption,
    named_path,
)
from fasteomt.cli.output import output
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.files import check_target, find_replaced, write_json

if TYPE_CHECKING:
    from fasteomt.checkpoint import Checkpoint
    from fasteomt.gates.footage import Footage
    from fasteomt.gates.verdict import Report, Verdict

logger = logging.getLogger(__name__)


def gate(
    model: ModelOption = DEFAULT_MODEL,
    video: Annotated[
        Path | None,
        typer.Option(
            "--video",
            parser=named_path,
            metavar="<path>",
            help="Clip to judge on; default: a short one is generated.",
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            "--truth", parser=named_path, metavar="<path>", help="The clip's true masks, a masks.mkv."
        ),
    ] = None,
    stack: StackOption = "bf16",
    device: DeviceOption = "auto",
    gates: Annotated[str, typer.Option("--gates", help="Which gates, comma-separated.")] = "M,H,G,O",
    json_path: Annotated[
        Path | None,
        typer.Option("--json", parser=named_path, metavar="<path>", help="Also write the verdicts here."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", parser=named_path, metavar="<path>", help="Draw where masks differ most, as PNG."
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compare a stack with the fp32 reference on a clip; exit code 4 if a gate fails. See GATES.md."""
    wanted = _gates(gates)
    if truth is not None and video is None:
        raise InputError("--truth needs the --video that it belongs to")
    targets = [path for path in (json_path, picture) if path is not None]
    for path in targets:
        check_target(path, overwrite=overwrite)
    if picture is not None and picture.suffix.lower() != ".png":
        raise InputError(f"--picture {picture}: must end in .png")
    if len({os.path.realpath(path) for path in targets}) < len(targets):
        raise InputError(f"--picture and --json are the same file, {picture}: name two")

    # torch takes seconds to import: a wrong argument needn't wait for it.
    from fasteomt.engine import resolve_device
    from fasteomt.gates.picture import WorstFrames
    from fasteomt.gates.run import run_gates
    from fasteomt.gates.store import save_report
    from fasteomt.gates.verdict import GateFailed
    from fasteomt.stacks import get_stack

    arithmetic, where = get_stack(stack), resolve_device(device)
    with _footage(video, truth, model, targets) as (checkpoint, footage):
        worst = WorstFrames(checkpoint.spec.names) if picture is not None else None
        with _bar("judging", footage.expected_frames()) as progress:
            report = run_gates(checkpoint, arithmetic, where, footage, wanted, worst=worst, progress=progress)
    try:
        save_report(report)
    except InputError as error:
        logger.warning("verdicts are not kept for later runs: %s", error)
    try:
        # The files first: whoever reads the table may stop reading.
        if json_path is not None:
            write_json(json_path, _record(report), overwrite=overwrite)
        if picture is not None and worst is not None:
            worst.write(picture, overwrite=overwrite)
    finally:
        _print(report, f"{checkpoint.source} | {stack} | {_clip_name(video)} | {report.subject.gpu}")
    if report.failed:
        found = "; ".join(f"{one.gate}: {', '.join(one.broken)}" for one in report.failed)
        remedy = (
            "take another stack" if picture is not None else "see where with --picture, or take another stack"
        )
        raise GateFailed(f"stack {stack} failed a gate on {_clip_name(video)}: {found}: {remedy}")
    if all(one.passed is None for one in report.verdicts):
        raise UnsupportedError(f"no gate was run: {report.verdicts[0].not_run}: choose others with --gates")


def _gates(text: str) -> list[str]:
    known = ("M", "H", "G", "O")
    wanted = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise InputError(f"--gates '{text[:40]}': choose among {', '.join(known)}, comma-separated")
    return wanted


@contextmanager
def _footage(
    video: Path | None, truth: Path | None, model: str, targets: list[Path]
) -> Iterator[tuple[Checkpoint, Footage]]:
    """The model and the clip, which lasts as long as the block if it is a generated one."""
    from fasteomt.checkpoint import resolve
    from fasteomt.gates.footage import make_footage, open_footage

    temporary = tempfile.TemporaryDirectory(prefix="fasteomt-gate-") if video is None else nullcontext("")
    # What the user names is looked at before the model, which takes time to read.
    own = open_footage(video, truth) if video is not None else None
    judged = [Path(model), *(own.files if own is not None else ())]
    if (found := find_replaced(judged, targets)) is not None:
        raise InputError(f"{found[1]} would replace {found[0]}, which is judged: name another file")
    checkpoint = resolve(model)
    with temporary as folder:
        if own is None:
            with _bar("no --video: generating a clip", None) as progress:
                own = make_footage(Path(folder), checkpoint.spec, lambda done, total: progress(done, total))
        yield checkpoint, own


@contextmanager
def _bar(description: str, total: int | None) -> Iterator[Callable[..., None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)

        def update(done: int, in_all: int | None = total) -> None:
            bar.update(task, completed=done, total=in_all)

        yield update


def _clip_name(video: Path | None) -> str:
    return "a generated clip" if video is None else str(video)


def _record(report: Report) -> dict[str, object]:
    from fasteomt import __version__
    from fasteomt.provenance import commit

    return {"fasteomt": __version__, "commit": commit(), **report.to_dict()}


def _print(report: Report, title: str) -> None:
    console = output()
    console.print(escape(title), soft_wrap=True, highlight=False)
    subject = report.subject
    console.print(
        f"plan {subject.plan}, checkpoint {subject.checkpoint[:12]}, clip {subject.clip[:12]}: "
        f"{report.frames} frames of {report.width}x{report.height}, "
        f"{'with' if subject.truth else 'without'} true masks",
        soft_wrap=True,
        highlight=False,
    )
    table = Table("gate", "verdict", "measured", "value", "limit")
    for verdict in report.verdicts:
        _add_rows(table, verdict)
    console.print(table)
    for name, classes in report.classes.items():
        accuracy = Table("id", "class", "IoU", "confidence error", "IoU to truth", "reference's")
        for one in classes:
            accuracy.add_row(
                str(one["id"]),
                escape(one["name"]),
                _cell(one["iou"]),
                _cell(one["confidence_error_percent"], "{:.2f} %"),
                _cell(one["truth_iou"]),
                _cell(one["truth_iou_reference"]),
            )
        console.print("with outliers injected:" if name == "O" else "over the clip:", highlight=False)
        console.print(accuracy)


def _add_rows(table: Table, verdict: Verdict) -> None:
    if verdict.not_run is not None:
        table.add_row(verdict.gate, "not run", escape(verdict.not_run), "", "")
        return
    bounds = {}
    for limit, bound in verdict.limits.items():
        kind, name = limit.split("_", 1)
        bounds[name] = f"{_SIGNS[kind]} {bound:g}"
    label, word = verdict.gate, "passed" if verdict.passed else "failed"
    # What has a limit first.
    for name in sorted(verdict.values, key=lambda name: name not in bounds):
        value = f"{verdict.values[name]:.6g}"
        table.add_row(label, word, name.replace("_", " "), value, bounds.get(name, ""))
        label = word = ""


_SIGNS = {"min": ">=", "max": "<="}


def _cell(value: float | None, form: str = "{:.4f}") -> str:
    return "-" if value is None else form.format(value)
