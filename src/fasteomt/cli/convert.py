"""`fasteomt convert`: one model file into another form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fasteomt.cli.options import OverwriteOption, named_path
from fasteomt.errors import InputError
from fasteomt.files import check_target, find_replaced

if TYPE_CHECKING:
    from torch import Tensor


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            parser=named_path, metavar="SOURCE", help="LightlyTrain export or checkpoint, or .safetensors."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            parser=named_path,
            metavar="TARGET",
            help="What to write: .pt (LightlyTrain export) or .safetensors.",
        ),
    ],
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
    if find_replaced([source], [target]):
        raise InputError(f"{target} is the source itself: choose another name")
    check_target(target, overwrite=overwrite)

    import torch

    from fasteomt.checkpoint import read, write_export, write_safetensors

    found = read(source)
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)
    if wanted is not None:
        largest, most = max(_largest(w) for w in found.weights.values() if w.numel()), torch.finfo(wanted).max
        if largest > most:
            raise InputError(
                f"{source}: a weight of {largest:.3g} is past {dtype}'s {most:.6g}: choose another --dtype"
            )
    write = write_export if target.suffix == ".pt" else write_safetensors
    write(target, found.spec, found.weights, dtype=wanted, overwrite=overwrite)
    print(f"{target}: {found.spec.name}, {target.stat().st_size / 1e6:.1f} MB")


def _largest(weight: Tensor) -> float:
    """The largest finite magnitude in a weight; 0 if none is finite."""
    # Widened first: 8-bit types have no such arithmetic. Infinity and NaN are the same in every type.
    return float(weight.double().nan_to_num(0, 0, 0).abs().max())
