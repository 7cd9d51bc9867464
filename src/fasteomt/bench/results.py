"""Reading and writing results.json, the record of a round.

run = Run.build(environment.current(device), command, measured, gates)
save(path, RoundResults(round="infer-opt/round0_baseline", title=..., kind=..., parent=None, runs=(run,)))
for problem in problems(load(path)): ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fasteomt.bench.environment import Environment
from fasteomt.bench.metrics import METRICS, PEERS
from fasteomt.bench.problems import problems
from fasteomt.bench.schema import (
    GateRecord,
    Measured,
    RoundResults,
    Row,
    Run,
    accuracy_of,
)
from fasteomt.errors import InputError
from fasteomt.files import check_target, require_file, write_json

__all__ = [
    "METRICS",
    "PEERS",
    "Environment",
    "GateRecord",
    "Measured",
    "RoundResults",
    "Row",
    "Run",
    "accuracy_of",
    "check",
    "load",
    "problems",
    "save",
]


def load(path: str | os.PathLike[str]) -> RoundResults:
    """Read a results.json; `problems` then says whether its figures hold.

    Raises:
        InputError: no such file, not JSON, or not of the form that `RoundResults` describes.
    """
    require_file(path)
    try:
        text = Path(path).read_text("utf-8")
        json.loads(text, object_pairs_hook=_no_key_twice)
        return RoundResults.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"{path}: {_first(error)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: can't be read as JSON: {error}") from None


def save(path: str | os.PathLike[str], results: RoundResults) -> RoundResults:
    """Write a round's results, each run in the place of the older one of the same GPU; other GPUs' runs stay.

    Returns:
        What is in the file now.

    Raises:
        InputError: the file that is there can't be read, is of another round or holds a newer run of the GPU,
            or it can't be written. What was there is there still.
    """
    runs = {run.env.gpu: run for run in _runs_there(path, results.round)}
    for run in results.runs:
        older = runs.get(run.env.gpu)
        if older is not None and older.env.date > run.env.date:
            raise InputError(
                f"{path}: holds a run on {run.env.gpu} of {older.env.date}, newer than {run.env.date}: "
                "check the clock, or name another file"
            )
        runs[run.env.gpu] = run
    merged = results.model_copy(update={"runs": tuple(runs[gpu] for gpu in sorted(runs))})
    write_json(path, merged.model_dump(mode="json"), overwrite=True)
    return merged


def check(path: str | os.PathLike[str], name: str) -> None:
    """Raise InputError where `save` of round `name`'s results would."""
    _runs_there(path, name)
    check_target(path, overwrite=True)


def _runs_there(path: str | os.PathLike[str], name: str) -> tuple[Run, ...]:
    """The runs of a file of round `name`; none where there is no file."""
    if not os.path.lexists(path):
        return ()
    found = load(path)
    if found.round != name:
        raise InputError(f"{path}: holds results of {found.round}, not of {name}: name another file")
    return found.runs


def _no_key_twice(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key stand twice, and readers differ in which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key '{next(name for name in names if names.count(name) > 1)}' stands there twice")
    return found


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, and how many more there are."""
    first, more = error.errors()[0], error.error_count() - 1
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    return f"{where}: {first['msg']}" + (f" (and {more} more)" if more else "")
