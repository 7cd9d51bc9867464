"""What results.json holds, and how its derived fields follow from the measured ones.

`Run.build` is the only way to make a run: whoever measures gives figures and verdicts, and never types a
ratio, a baseline's median or an accuracy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue

from fasteomt.bench.environment import Environment, Record, Text
from fasteomt.bench.metrics import INFERENCE_GATES, METRICS
from fasteomt.errors import InputError

# Two rows compare only where all of these agree.
CONDITIONS = ("model", "metric", "crops", "frames", "batch", "streams", "phase")


def _known_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"unknown metric: one of {', '.join(METRICS)}")
    return name


def _finite(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    json.dumps(values, allow_nan=False)  # a ValueError where a number is none
    return values


Count = Annotated[int, Field(ge=1)] | None
Positive = Annotated[float, Field(gt=0)] | None
Span = tuple[float, float] | None
Accuracy = Literal["passed", "failed", "unchecked"]


class Measured(Record):
    """One figure as it was measured; times and `floor` in the metric's unit.

    `stack` is a stack's name and `plan` its plan's hash; or a peer's name, with no plan. `median`, `min` and
    `max` are over `n` rounds; a row without a time has none of them, and a `note` that says why. `floor` is
    the best that the hardware could do: a lower bound of times, an upper bound of rates. `phase` is a part of
    the work ('prep'), None for all of it. `baseline` names the stack, measured in the same run, to compare
    with. Clock, power and temperature are (lowest, highest) while it was measured. `by`: whether the
    arithmetic was the hardware's own; emulated arithmetic can be checked but not timed.
    """

    model: Text
    stack: Text
    plan: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")] | None
    metric: Annotated[str, AfterValidator(_known_metric)]
    crops: Count
    frames: Count
    batch: Count
    streams: Count
    phase: Text | None = None
    median: Positive = None
    min: Positive = None
    max: Positive = None
    n: Annotated[int, Field(ge=0)] = 0
    floor: Positive = None
    peak_mib: Positive = None
    baseline: Text | None = None
    by: Literal["native", "emulated"]
    clock_mhz: Span = None
    watts: Span = None
    celsius: Span = None
    note: Text | None = None


class Row(Measured):
    """A figure with what follows from it and from its run; `ratio` > 1 is better than the baseline."""

    unit: Text
    baseline_median: Positive
    ratio: Positive
    accuracy: Accuracy
    speed: Literal["measured", "none"]


class GateRecord(Record):
    """The verdict of one gate on one plan; `checkpoint` and `clip` are SHA-256 of what it was checked with,
    `values` the figures that were compared with the limits."""

    gate: Literal["M", "H", "G", "O", "B", "S", "E"]
    model: Text
    plan: Text
    checkpoint: Text
    clip: Text
    passed: bool
    values: Annotated[dict[str, JsonValue], AfterValidator(_finite)]


class Run(Record):
    """All that one command measured on one machine. `seal` is `digest()` when it was made."""

    env: Environment
    command: Text
    rows: tuple[Row, ...]
    gates: tuple[GateRecord, ...]
    seal: str

    @classmethod
    def build(
        cls, env: Environment, command: str, measured: Iterable[Measured], gates: Iterable[GateRecord]
    ) -> Run:
        """Derive all that follows and seal it.

        Raises:
            InputError: a row names a baseline that isn't in the run.
        """
        measured, gates = tuple(measured), tuple(gates)
        run = cls(
            env=_with_telemetry(env, measured),
            command=command,
            rows=tuple(_row(row, measured, gates) for row in measured),
            gates=gates,
            seal="",
        )
        return run.model_copy(update={"seal": run.digest()})

    def digest(self) -> str:
        """SHA-256 (hex) of the run's JSON without its seal: keys sorted, no spaces, ASCII, and no fields that
        are null, so that a field that a later version adds leaves older seals whole."""
        content = _present(self.model_dump(mode="json", exclude={"seal"}))
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class RoundResults(Record):
    """A round's results.json. `round` is its folder ('infer-opt/round0_baseline'), `parent` the folder's name
    of the round that it changes; `runs` holds one for each GPU."""

    round: Text
    title: Text
    kind: Literal["change", "probe", "study", "summary"]
    parent: Text | None
    runs: tuple[Run, ...]


def accuracy_of(
    plan: str | None, model: str, gates: Iterable[GateRecord], needed: Sequence[str] = INFERENCE_GATES
) -> Accuracy:
    """What gates say of a plan on a model: 'failed' if one of any kind failed, 'passed' if all `needed` are
    there, else 'unchecked'.

    `needed` is of the row's metric. Inference needs the outlier gate O whatever the formats: large values
    overflow 16 bits too, and a plan's hash doesn't tell its formats. Peers, with no plan, are 'unchecked'.
    """
    verdicts = [(gate.gate, gate.passed) for gate in gates if (gate.plan, gate.model) == (plan, model)]
    if not all(passed for _, passed in verdicts):
        return "failed"
    complete = bool(needed) and {name for name, _ in verdicts} >= set(needed)
    return "passed" if complete else "unchecked"


def conditions(row: Measured) -> tuple[Any, ...]:
    """What must agree between two rows for their figures to be comparable."""
    return tuple(getattr(row, name) for name in CONDITIONS)


def compared(row: Measured, rows: Iterable[Measured]) -> tuple[float | None, float | None]:
    """The baseline's median and the ratio, from the rows of one run; both None where a time is missing.

    Raises:
        InputError: the row names a baseline that isn't there under the same conditions.
    """
    if row.baseline is None:
        return None, None
    found = [one for one in rows if one.stack == row.baseline and conditions(one) == conditions(row)]
    if not found or row.stack == row.baseline:
        raise InputError(
            f"{label(row)}: baseline '{row.baseline}' is no other row of this run with the same "
            f"{', '.join(CONDITIONS)}: measure it in the same run"
        )
    baseline = found[0].median
    if row.median is None or baseline is None:
        return None, None
    return baseline, row.median / baseline if METRICS[row.metric].rate else baseline / row.median


def label(row: Measured) -> str:
    """A row's name in messages, such as 'vitl16 bf16 model_ms crops=2 frames=1'."""
    counts = [f"{name}={value}" for name in CONDITIONS[2:] if (value := getattr(row, name)) is not None]
    return " ".join([row.model, row.stack, row.metric, *counts])


def _present(content: Any) -> Any:
    """JSON content without the keys whose value is null, at any depth."""
    if isinstance(content, list):
        return [_present(one) for one in content]
    if isinstance(content, dict):
        return {key: _present(one) for key, one in content.items() if one is not None}
    return content


def _row(row: Measured, rows: Sequence[Measured], gates: Sequence[GateRecord]) -> Row:
    metric = METRICS[row.metric]
    baseline_median, ratio = compared(row, rows)
    return Row(
        **dict(row),
        unit=metric.unit,
        baseline_median=baseline_median,
        ratio=ratio,
        accuracy=accuracy_of(row.plan, row.model, gates, metric.gates),
        speed="none" if row.median is None else "measured",
    )


def _with_telemetry(env: Environment, rows: Sequence[Measured]) -> Environment:
    """The environment with the extremes of its rows' clocks and power."""
    clocks = [value for row in rows if row.clock_mhz is not None for value in row.clock_mhz]
    watts = [value for row in rows if row.watts is not None for value in row.watts]
    return Environment(
        **dict(env)
        | {
            "clocks_mhz": (min(clocks), max(clocks)) if clocks else env.clocks_mhz,
            "watts": (min(watts), max(watts)) if watts else env.watts,
        }
    )
