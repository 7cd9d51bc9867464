"""`fasteomt plan show`: the sites of a model and how a stack computes each."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fasteomt.cli.options import DEFAULT_MODEL, JsonOption, ModelOption, StackOption
from fasteomt.cli.output import output

app = typer.Typer(help="How a stack computes a model.", no_args_is_help=True)


@app.callback()
def plans() -> None:
    """How a stack computes a model."""


@app.command()
def show(
    model: ModelOption = DEFAULT_MODEL,
    stack: StackOption = "fp32",
    upstream: Annotated[
        bool, typer.Option("--upstream", help="Add LightlyTrain's module of each site.")
    ] = False,
    arch: Annotated[
        str, typer.Option(help="The plan for this architecture: cpu, sm_90, ...; auto is this machine's.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """List a model's sites in execution order with implementation and number format."""
    from fasteomt.checkpoint import resolve_spec
    from fasteomt.engine import resolve_device
    from fasteomt.ops.target import Target
    from fasteomt.plan import sites
    from fasteomt.stacks import get_stack

    chosen = get_stack(stack)
    spec = resolve_spec(model)
    target = Target.of(resolve_device("auto")) if arch == "auto" else Target.named(arch)
    plan = chosen.plan(spec, target)
    if as_json:
        print(plan.to_json())
        return
    by_site = {name: group for group in plan.groups for name in group.sites}
    table = Table()
    for column in ("site", "op", "implementation", "format") + (("upstream module",) if upstream else ()):
        table.add_column(column)
    for site in sites(spec):
        group = by_site[site.name]
        row = [site.name, site.op, group.implementation, group.recipe]
        table.add_row(*row, *([site.upstream] if upstream else []))
    console = output()
    # Not as the table's title, which is wrapped to the table's width.
    title = f"{spec.name}, stack {chosen.name} ({chosen.summary}) on {target.arch}, plan {plan.hash}"
    console.print(escape(title), soft_wrap=True, highlight=False)
    console.print(table)
