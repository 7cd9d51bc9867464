"""The tables made from the ladders' results.json files: README's speed table and each ladder's index.

A row is compared with its round's parent where its baseline is a stack that the parent's results are about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fasteomt.bench.ladder import ladders, rounds
from fasteomt.bench.results import RoundResults, Row, Run, load, problems
from fasteomt.errors import InputError

SPEED_LEGEND = (
    "In each model's column: the median; how many times as fast that is as what it is compared with, in the "
    "same run; and, where it is known, the share of the time that this GPU's measured peak arithmetic and "
    "memory bandwidth alone would take."
)
INDEX_HEADER = ("round", "change", "GPU", "model", "stack", "metric", "x parent", "gates")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def read_ladders(root: Path) -> tuple[dict[str, RoundResults], list[str]]:
    """All results by round, and one line, with the file's name, for each thing that is wrong with them."""
    results, wrong = {}, []
    for folder in (folder for ladder in ladders(root) for folder in rounds(ladder)):
        path = folder / "results.json"
        if not path.exists():
            continue
        try:
            found = load(path)
        except InputError as error:
            wrong.append(str(error))
            continue
        name = folder.relative_to(root).as_posix()
        results[name] = found
        wrong += [f"{path}: {problem}" for problem in problems(found)]
        if found.round != name:
            wrong.append(f"{path}: is of round {found.round}, not of {name}")
        if found.parent is not None and not (folder.parent / found.parent).is_dir():
            wrong.append(f"{path}: parent '{found.parent}' is no round of {folder.parent.name}")
    return results, wrong


def speed(results: Mapping[str, RoundResults], source: str) -> str:
    """What was measured against what, and whether it is right: of everything that the last round which has it
    says, with a column for each model, and the commands of these rounds.

    `source` is the digest of today's sources.
    """
    found: dict[tuple[str, str, str, str], dict[str, tuple[RoundResults, Run, Row]]] = {}
    for result in results.values():
        for run in result.runs:
            baselines = {(row.model, row.baseline, _metric(row)) for row in run.rows if row.ratio is not None}
            for row in run.rows:
                if row.ratio is not None or (row.model, row.stack, _metric(row)) in baselines:
                    line = found.setdefault((run.env.gpu, _metric(row), row.stack, row.baseline or "-"), {})
                    line[row.model] = result, run, row
    if not found:
        return "No speed figures have been measured yet."
    models = list(dict.fromkeys(model for line in found.values() for model in line))
    rows = []
    commands: dict[str, None] = {}
    for (gpu, metric, stack, baseline), line in found.items():
        figures = [_against(line[model][2]) if model in line else "-" for model in models]
        evidence = dict.fromkeys(f"{row.accuracy}, {row.by}" for _, _, row in line.values())
        places = {_marked(result.round, run, source): run for result, run, _ in line.values()}
        commands |= {f"- {place}: `{run.command}` on {gpu}": None for place, run in places.items()}
        rows.append((gpu, metric, stack, baseline, *figures, "; ".join(evidence), "; ".join(places)))
    header = ("GPU", "measured", "stack", "against", *models, "accuracy", "from")
    return "\n\n".join([SPEED_LEGEND, table(header, rows), "\n".join(commands)])


def _against(row: Row) -> str:
    """A row's figure, the ratio to what it is compared with, if anything, and the floor's share."""
    assert row.median is not None
    parts = [_figure(row.median, row.unit)]
    if row.ratio is not None:
        parts.append(f"{row.ratio:.2f} x")
    if row.floor is not None:
        share = min(row.floor, row.median) / max(row.floor, row.median)
        parts.append(f"{share:.0%}")
    return ", ".join(parts)


def index(ladder: Path, results: Mapping[str, RoundResults], source: str) -> str:
    """A ladder's rounds in order, each with what it changes and what that gave, on each GPU."""
    rows: list[tuple[str, ...]] = []
    for folder in rounds(ladder):
        result = results.get(f"{ladder.name}/{folder.name}")
        link = f"[{folder.name}]({folder.name}/)"
        if result is None or not result.runs:
            rows.append(
                (link, _heading(folder) if result is None else result.title, "no results", *("-",) * 5)
            )
            continue
        parent = results.get(f"{ladder.name}/{result.parent}")
        for run in result.runs:
            rows += [
                (_marked(link, run, source), result.title, run.env.gpu, *cells)
                for cells in _outcomes(run, parent)
            ]
    return table(INDEX_HEADER, rows)


def _heading(folder: Path) -> str:
    """What a round's notes call it: of '# Round 2: one CUDA graph' all after the colon."""
    notes = folder / "NOTES.md"
    first = notes.read_text("utf-8").partition("\n")[0] if notes.exists() else ""
    return first.partition(": ")[2]


def _outcomes(run: Run, parent: RoundResults | None) -> list[tuple[str, ...]]:
    """Model, stack, metric, x parent and gates: one line for each comparison with the parent, and one for
    each stack of ours that isn't compared with anything of the parent's."""
    about = set() if parent is None else set(_subjects(parent))
    against = [row for row in run.rows if row.ratio is not None and (row.model, row.baseline) in about]
    named = {(row.model, row.stack) for row in against} | {(row.model, row.baseline) for row in against}
    alone = {
        (row.model, row.stack, "-", "-", f"{row.accuracy}, {row.by}"): None
        for row in run.rows
        if row.plan is not None and (row.model, row.stack) not in named
    }
    lines: list[tuple[str, ...]] = [
        (row.model, row.stack, _metric(row), f"{row.ratio:.2f} x {row.baseline}", f"{row.accuracy}, {row.by}")
        for row in against
    ]
    return [*lines, *alone] or [("-",) * 5]


def _subjects(result: RoundResults) -> Iterator[tuple[str, str]]:
    """Model and stack of what a round is about: a change's own stacks, not those it compares with; all that
    any other round measured."""
    for run in result.runs:
        baselines = {row.baseline for row in run.rows}
        for row in run.rows:
            if result.kind != "change" or (row.plan is not None and row.stack not in baselines):
                yield row.model, row.stack


def _marked(text: str, run: Run, source: str) -> str:
    return text if run.env.source == source else f"{text} (older source)"


def _metric(row: Row) -> str:
    """The metric with all that tells its figure from others, e.g. 'model_ms, 2 crops, batch 1'."""
    parts = [row.metric]
    for name in ("crops", "frames", "streams"):
        count = getattr(row, name)
        if count is not None:
            parts.append(f"{count} {name.removesuffix('s') if count == 1 else name}")
    if row.batch is not None:
        parts.append(f"batch {row.batch}")
    return ", ".join(parts if row.phase is None else [*parts, row.phase])


def _figure(value: float | None, unit: str) -> str:
    """Four significant digits, but never fewer than the whole number."""
    if value is None:
        return "-"
    return f"{value:.4g} {unit}" if value < 1e4 else f"{value:.0f} {unit}"
