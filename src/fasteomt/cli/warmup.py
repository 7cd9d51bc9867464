"""`fasteomt warmup`: compile what a model's first frame would otherwise wait for."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from fasteomt.cli.options import DEFAULT_MODEL, DeviceOption, ModelOption
from fasteomt.cli.output import output


def warmup(
    model: ModelOption = DEFAULT_MODEL,
    stack: Annotated[
        str, typer.Option("--stack", help="Arithmetic to get ready, e.g. bf16 or fp16.")
    ] = "bf16",
    crops: Annotated[
        list[int] | None,
        typer.Option("--crops", min=1, max=256, help="Crops of a frame; may be repeated. Default: 1 and 2."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Build an engine for each number of crops and tell how long it took.

    Compiled kernels stay in Triton's cache (TRITON_CACHE_DIR), so that later programs find them there.
    """
    import time

    from fasteomt.checkpoint import resolve
    from fasteomt.engine import Engine, resolve_device
    from fasteomt.stacks import get_stack

    chosen, where = get_stack(stack), resolve_device(device)
    checkpoint = resolve(model)
    console, table = output(), Table("what", "seconds")
    started = time.perf_counter()
    engine = Engine(checkpoint.spec, checkpoint.weights, chosen, where)
    for count in dict.fromkeys(crops or [1, 2]):
        engine.warm_up(count)
        table.add_row(f"{count} crops" if count > 1 else "1 crop", f"{time.perf_counter() - started:.1f}")
        started = time.perf_counter()
    console.print(f"{checkpoint.spec.name}, stack {chosen.name} on {where}", highlight=False)
    console.print(table)
