"""`fasteomt convert`: one model file into another form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fasteomt.cli.options import OverwriteOption
from fasteomt.errors import InputError


def convert(
    source: Annotated[Path, typer.Argument(help="LightlyTrain export or checkpoint, or .safetensors.")],
    target: Annotated[Path, typer.Argument(help="What to write: .pt (LightlyTrain export) or .safetensors.")],
    dtype: Annotated[
        str, typer.Option(help="Type of the stored weights: keep, fp32, bf16 or fp16.")
    ] = "keep",
    overwrite: OverwriteOption = False,
) -> None:
    """Turn a model file into a LightlyTrain export or into safetensors, rounded to 16 bits if asked."""
    writers = (".pt", ".safetensors")
    if target.suffix not in writers:
        raise InputError(f"{target}: must end in {' or '.join(writers)}")
    if dtype not in ("keep", "fp32", "bf16", "fp16"):
        raise InputError(f"--dtype {dtype}: choose keep, fp32, bf16 or fp16")
    if target.exists() and source.exists() and target.samefile(source):
        raise InputError(f"{target} is the source itself: choose another name")

    import torch

    from fasteomt.checkpoint import read, write_export, write_safetensors

    found = read(source)
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)
    if wanted is torch.float16:
        largest = max(float(w.abs().max()) for w in found.weights.values() if w.numel())
        if largest > torch.finfo(torch.float16).max:
            raise InputError(f"{source}: a weight of {largest:.3g} is past fp16's 65504: use --dtype bf16")
    write = write_export if target.suffix == ".pt" else write_safetensors
    write(target, found.spec, found.weights, dtype=wanted, overwrite=overwrite)
    Console().print(f"{target}: {found.spec.name}, {target.stat().st_size / 1e6:.1f} MB", highlight=False)
