"""What a round's speed.py shares: its options, and how its rows become its results.json and a table."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

import torch
from rich.table import Table

from fasteomt.bench import environment
from fasteomt.bench.results import (
    Environment,
    GateRecord,
    Measured,
    RoundResults,
    Run,
    check,
    problems,
    save,
)
from fasteomt.bench.rows import units
from fasteomt.bench.schema import compared
from fasteomt.cli.output import output
from fasteomt.cli.script import OneLineParser
from fasteomt.errors import FastEomtError, InputError

logger = logging.getLogger(__name__)


def log_progress() -> None:
    """Tell on stderr what is being measured, and when."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )


def options(name: str, description: str, models: str) -> argparse.ArgumentParser:
    """--model, --out, --quick and --device, as every round has them."""
    p = OneLineParser(prog=name, description=description)
    p.add_argument(
        "--model", default=models, help="architectures (random weights) or checkpoints, with commas"
    )
    p.add_argument(
        "--out", type=Path, default=Path("results.local.json"), help="results file; runs are merged"
    )
    p.add_argument("--quick", action="store_true", help="short timings: to see that it runs, not for figures")
    p.add_argument("--device", default="auto")
    return p


def finish(
    out: Path,
    *,
    round_name: str,
    title: str,
    kind: Literal["change", "probe", "study", "summary"],
    parent: str | None,
    device: torch.device,
    rows: Iterable[Measured],
    gates: Iterable[GateRecord] = (),
) -> RoundResults:
    """Measure the rows, write them as this GPU's run of a round's results, and print them.

    Meanwhile, what is measured is kept in a file of its own beside `out`, '<name>.<start>-<number>.partial':
    it is there still after a failure, an interruption, or the process's end.

    Raises:
        FastEomtError: the figures contradict one another, or can't be written.
    """
    command = shlex.join(["python", f"{round_name}/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    gates = tuple(gates)

    def results_of(rows: Iterable[Measured], where: Environment) -> RoundResults:
        run = Run.build(where, command, rows, gates)
        return RoundResults(round=round_name, title=title, kind=kind, parent=parent, runs=(run,))

    check(out, round_name)  # before anything is measured
    started = environment.current(device)
    kept = _Kept(out, started.date)
    measured: list[Measured] = []
    try:
        for row in rows:
            measured.append(row)
            kept.write(results_of(_with_baselines(measured), started))
        results = results_of(measured, environment.current(device))
        wrong = problems(results)
        if wrong:
            raise FastEomtError(f"{out}: not written: {wrong[0]}")
        save(out, results)
    except BaseException:
        if kept.rows:
            logger.warning("%s: %d rows, all that was measured until now", kept.path, kept.rows)
        raise
    kept.remove()
    show(results.runs[0])
    return results


class _Kept:
    """The file of what a run has measured so far. That it can't be written mustn't end the run."""

    def __init__(self, out: Path, start: str) -> None:
        self.path = out.with_name(f"{out.name}.{start.replace(':', '')}-{uuid4().hex[:8]}.partial")
        self.rows = 0  # in the file
        self._works = True

    def write(self, results: RoundResults) -> None:
        rows = len(results.runs[0].rows)
        if not (self._works and rows):
            return
        try:
            save(self.path, results)
            self.rows = rows
        except FastEomtError as error:
            self._works = False
            logger.warning("what is measured can't be kept meanwhile: %s", error)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _with_baselines(rows: Sequence[Measured]) -> list[Measured]:
    """Without rows whose baseline is still to come."""

    def is_there(row: Measured) -> bool:
        with suppress(InputError):
            compared(row, found)
            return True
        return False

    found, before = list(rows), len(rows) + 1
    while len(found) < before:  # a row that goes may have been another one's baseline
        before, found = len(found), [row for row in found if is_there(row)]
    return found


def show(run: Run) -> None:
    """Print a run's rows as a table."""
    table = Table()
    for column in (
        "model",
        "stack",
        "metric",
        "crops",
        "median",
        "floor",
        "ratio",
        "MiB",
        "accuracy",
        "note",
    ):
        table.add_column(column)
    for row in run.rows:
        metric = row.metric if row.phase is None else f"{row.metric} {row.phase}"
        table.add_row(
            row.model, row.stack, metric, str(row.crops or row.batch or "-"), units(row),
            "-" if row.floor is None else f"{row.floor:.3g}",
            "-" if row.ratio is None else f"{row.ratio:.2f} x {row.baseline}",
            "-" if row.peak_mib is None else f"{row.peak_mib:,.0f}", row.accuracy, row.note or "",
        )  # fmt: skip
    console = output()
    console.print(f"{run.env.gpu}, torch {run.env.torch}", highlight=False)
    console.print(table)
