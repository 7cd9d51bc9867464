"""What is wrong with results that have the right form: figures that don't follow from one another, verdicts
without gates, edits by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from fasteomt.bench.metrics import METRICS, PEERS
from fasteomt.bench.schema import (
    GateRecord,
    RoundResults,
    Row,
    Run,
    accuracy_of,
    compared,
    conditions,
    label,
)
from fasteomt.errors import InputError

RATIO_TOLERANCE = 1e-6  # relative; both medians and the ratio are stored in full

_COMPARISON = {"baseline", "baseline_median", "ratio"}
_TIMES = ("median", "min", "max", "baseline_median", "ratio")


T = TypeVar("T", bound=Hashable)


def problems(results: RoundResults) -> list[str]:
    """One line for each thing that is wrong, each with the GPU and the row; [] where all is well."""
    found = []
    if results.kind == "change" and results.parent is None:
        found.append("a change without a parent: name the round that it changes")
    for gpu in _repeated(run.env.gpu for run in results.runs):
        found.append(f"{gpu}: two runs of this GPU: keep the newest")
    for run in results.runs:
        found += [f"{run.env.gpu}: {problem}" for problem in _of_run(run)]
    return found


def _of_run(run: Run) -> Iterator[str]:
    if run.seal != run.digest():
        yield "the seal doesn't match: the run was edited after it was measured; measure it again"
    for row in run.rows:
        for problem in (*_of_row(row), *_of_comparison(row, run.rows), *_of_accuracy(row, run.gates)):
            yield f"{label(row)}: {problem}"
    yield from _of_stacks(run.rows)
    for gate in run.gates:
        if gate.passed and not gate.values:
            yield f"gate {gate.gate} of plan {gate.plan} passed without figures"


def _of_row(row: Row) -> Iterator[str]:
    """What a row says of itself."""
    metric = METRICS[row.metric]
    if row.unit != metric.unit:
        yield f"unit '{row.unit}', but {row.metric} is in {metric.unit}"
    if row.plan is not None and row.stack in PEERS:
        yield "a peer has no plan"
    if row.plan is None and row.stack not in PEERS and metric.gates:
        yield "no plan, though it is no peer: its gates can't be known"
    if row.by == "emulated" and row.speed != "none":
        yield "emulated arithmetic has no speed"
    yield from _without_time(row) if row.speed == "none" else _with_time(row)
    for name in ("clock_mhz", "watts", "celsius"):
        span = getattr(row, name)
        if span is not None and span[0] > span[1]:
            yield f"{name}: the lowest is above the highest"


def _without_time(row: Row) -> Iterator[str]:
    times = [name for name in _TIMES if getattr(row, name) is not None]
    if times or row.n:
        yield f"speed is 'none', yet it has {', '.join(times) or 'n'}"
    if row.note is None:
        yield "has no time and no note that says why"


def _with_time(row: Row) -> Iterator[str]:
    metric = METRICS[row.metric]
    if row.median is None or row.min is None or row.max is None or row.n < 1:
        yield "measured, but without median, min, max or n"
        return
    if not row.min <= row.median <= row.max:
        yield f"median {row.median:g} is outside min {row.min:g} and max {row.max:g}"
    if row.floor is not None and (row.median > row.floor if metric.rate else row.median < row.floor):
        yield f"median {row.median:g} {row.unit} is faster than the physical floor {row.floor:g}"


def _of_comparison(row: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Whether baseline_median and ratio are what the rows of the run give."""
    try:
        median, ratio = compared(row, rows)
    except InputError as error:
        yield str(error).removeprefix(f"{label(row)}: ")
        return
    if row.baseline_median != median:
        yield f"baseline_median is {row.baseline_median}, but the median of '{row.baseline}' is {median}"
    if not _same_ratio(row.ratio, ratio):
        yield f"ratio is {row.ratio}, but the two medians give {ratio}"


def _same_ratio(said: float | None, expected: float | None) -> bool:
    if said is None or expected is None:
        return said is expected
    return math.isclose(said, expected, rel_tol=RATIO_TOLERANCE)


def _of_accuracy(row: Row, gates: Iterable[GateRecord]) -> Iterator[str]:
    needed = METRICS[row.metric].gates
    expected = accuracy_of(row.plan, row.model, gates, needed)
    if row.accuracy != expected:
        yield f"accuracy is '{row.accuracy}', but the gates of its plan say '{expected}'"


def _of_stacks(rows: Sequence[Row]) -> Iterator[str]:
    """One plan for a stack's name, one figure for a stack under given conditions, each comparison once."""
    plans = {(row.model, row.stack, row.plan) for row in rows}
    for model, stack in _repeated((model, stack) for model, stack, _ in plans):
        yield f"{model} {stack}: two plans under one name"
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.stack, conditions(row)), []).append(row)
    for group in groups.values():
        if len({row.model_dump_json(exclude=_COMPARISON) for row in group}) > 1:
            yield f"{label(group[0])}: measured twice with different figures: keep one"
        if _repeated(row.baseline for row in group):
            yield f"{label(group[0])}: the same row twice: keep one"


def _repeated(items: Iterable[T]) -> list[T]:
    return [item for item, count in Counter(items).items() if count > 1]
