"""Options that several commands share, so that they mean and read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "heads-vitt16"


def named_path(text: str | Path) -> Path:
    """A path from the command line. An empty one, as of a variable that isn't set, would mean this folder."""
    if not str(text):
        raise typer.BadParameter("it is empty, name a path")
    return Path(text)


ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Checkpoint file, 'heads-vitt16' (shipped), or an architecture like 'vitl16' (random weights).",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
StackOption = Annotated[str, typer.Option("--stack", help="Arithmetic to run: fp32, bf16, fp16, ...")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]
