"""`fasteomt bench`: how fast stacks run a model on this machine, beside what PyTorch users would do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasteomt.cli.options import DEFAULT_MODEL, DeviceOption, ModelOption, OverwriteOption, named_path

app = typer.Typer(help="How fast stacks run a model on this machine.", invoke_without_command=True)


@app.callback()
def bench(
    context: typer.Context,
    model: ModelOption = DEFAULT_MODEL,
    video: Annotated[
        Path | None,
        typer.Option(
            "--video", parser=named_path, metavar="FILE", help="Sets the frame's size: 1900x1440 if none."
        ),
    ] = None,
    stack: Annotated[
        list[str] | None, typer.Option("--stack", help="A stack to time; may be repeated. Default: all.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", help="What to compare with; may be repeated. Default: what a GPU's user would do."
        ),
    ] = None,
    device: DeviceOption = "auto",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.05, max=60, help="Timed for each candidate and round.")
    ] = 1.0,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", parser=named_path, metavar="FILE", help="Write the rows here as well."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Time the model segment: crops of one frame (1900x1440 without a video) in, mask logits out."""
    if context.invoked_subcommand is not None:
        return
    from fasteomt.bench.ceilings import measure_ceilings
    from fasteomt.bench.environment import current
    from fasteomt.bench.results import PEERS, Run
    from fasteomt.bench.rows import model_rows
    from fasteomt.checkpoint import resolve
    from fasteomt.cli.round import show
    from fasteomt.engine import resolve_device
    from fasteomt.errors import InputError
    from fasteomt.files import check_target, write_json
    from fasteomt.model.tiling import Tiling
    from fasteomt.stacks import STACKS, get_stack
    from fasteomt.video import open_source

    if json_path is not None:
        check_target(json_path, overwrite=overwrite)
    where = resolve_device(device)
    on_gpu = where.type == "cuda"
    # On a GPU against what its user would do otherwise; elsewhere against the first stack.
    peers = peer or (["compile_reduce_overhead"] if on_gpu else [])
    names = [name if name in PEERS else get_stack(name).name for name in (*(stack or STACKS), *peers)]
    if len(set(names)) != len(names):
        raise InputError(f"{', '.join(names)}: name each stack and peer once")
    checkpoint = resolve(model)
    height, width = 1440, 1900
    if video is not None:
        with open_source(video) as source:
            height, width = source.height, source.width
    crops = len(Tiling.of(height, width, checkpoint.spec.crop_size).starts)
    rows = model_rows(
        checkpoint, checkpoint.spec.short_name, where, names, crops=crops, seconds=seconds,
        baseline=peers[0] if peers else names[0],
        ceilings=measure_ceilings(where, seconds=0.2) if on_gpu else None,
    )  # fmt: skip
    run = Run.build(current(where), "fasteomt bench", rows, ())
    show(run)
    if json_path is not None:
        write_json(json_path, run.model_dump(mode="json"), overwrite=overwrite)


@app.command()
def ladder(
    root: Annotated[Path, typer.Argument(parser=named_path, help="Root of a checkout.")] = Path("."),
    quick: Annotated[
        bool, typer.Option("--quick", help="Short timings into results.local.json: to see that all run.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", help="Models for every round, with commas.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Run every round of both ladders on this machine and write their results."""
    from fasteomt.bench.ladder import run_rounds

    options = ["--device", device, *(["--model", model] if model else [])]
    for path in run_rounds(root, options, quick=quick, starting=lambda folder: print(folder, flush=True)):
        print(path)
