"""`fasteomt tune`: measure on this machine what is fastest on it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as Lines

from fasteomt.cli.options import DEFAULT_MODEL, DeviceOption, OverwriteOption, named_path
from fasteomt.cli.output import output

if TYPE_CHECKING:
    from fasteomt.bench.tune import Finding

app = typer.Typer(help="Measure what is fastest on this machine.", no_args_is_help=True)


@app.callback()
def tune() -> None:
    """Measure what is fastest on this machine."""


@app.command()
def kernels(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="As of infer, e.g. 'vitl16'; may be repeated."),
    ] = None,
    stack: Annotated[
        list[str] | None, typer.Option("--stack", help="May be repeated. Default: bf16 and fp16.")
    ] = None,
    crops: Annotated[
        list[int] | None,
        typer.Option("--crops", min=1, max=256, help="Crops of a frame; may be repeated. Default: 2."),
    ] = None,
    device: DeviceOption = "auto",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.001, max=10, help="Timed for each finalist and round.")
    ] = 0.02,
    candidates: Annotated[
        int, typer.Option("--candidates", min=1, help="Configurations of each implementation, at most.")
    ] = 8,
    limit: Annotated[
        float | None,
        typer.Option("--limit", min=1, metavar="SECONDS", help="Stop about then with what is measured."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=named_path, metavar="FILE", help="Write there, not to the cache."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Time all implementations of linear layers, attention and the mask head's end at the models' shapes, and
    keep the fastest.

    Stacks use what is kept for this GPU. Without --out it joins what was measured before with the same torch
    and Triton, in the user's cache (FASTEOMT_CACHE).
    """
    from fasteomt.bench.tune import jobs_of, table_from, tune, workers_for
    from fasteomt.checkpoint import resolve_spec
    from fasteomt.engine import resolve_device
    from fasteomt.engine.tuning import Table, read_table, table_file
    from fasteomt.errors import InputError, UnsupportedError
    from fasteomt.files import check_target
    from fasteomt.ops.target import Target
    from fasteomt.stacks import get_stack

    stacks = [get_stack(name) for name in stack or ("bf16", "fp16")]
    specs = [resolve_spec(name) for name in model or (DEFAULT_MODEL,)]
    where = resolve_device(device)
    if where.type != "cuda":
        raise UnsupportedError("tuning kernels needs a CUDA device: see fasteomt doctor")
    if out is not None:
        check_target(out, overwrite=overwrite)
    jobs = jobs_of(specs, stacks, crops or [2], Target.of(where))
    findings = tune(
        jobs, where, most=candidates, seconds=seconds, workers=workers_for(where), limit_s=limit,
        progress=_Progress(),
    )  # fmt: skip
    show(findings)
    found = table_from(findings, where)
    if not found.entries:
        raise InputError("nothing could be measured: see the warnings above")
    path = out or table_file(found.gpu)
    if out is None:
        before = read_table(path)
        same = (before.torch, before.triton) == (found.torch, found.triton)
        found = found.over(before if same else Table())
    found.write(path, overwrite=overwrite or out is None)
    print(path)


class _Progress:
    """A line now and then, which logs and terminals both can show."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._began, self._every_s, self._last = time.monotonic(), every_s, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done in (0, total) or now - self._last >= self._every_s:
            self._last = now
            print(f"{now - self._began:4.0f} s: {done} of {total} {what}", file=sys.stderr, flush=True)


def show(findings: list[Finding]) -> None:
    """Print who won each problem."""
    table = Lines("op", "problem", "fastest", "us", "TFLOP/s", "then")
    for finding in findings:
        problem = finding.job.key
        if not finding.ranked:
            table.add_row(finding.job.op, problem, "not measured", "", "", "")
            continue
        (first, seconds), *others = finding.ranked
        rate = finding.job.flops / seconds / 1e12
        then = ", ".join(f"{choice.implementation} {slower * 1e6:.1f}" for choice, slower in others)
        row = (finding.job.op, problem, first.name, f"{seconds * 1e6:.1f}", f"{rate:.0f}", then)
        table.add_row(*map(escape, row))
    output().print(table)
