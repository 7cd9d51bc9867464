"""`fasteomt data`: generated training data and test clips with exact truth."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fasteomt.cli.options import OverwriteOption, named_path
from fasteomt.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Generate heads on photos: a training set, or a video clip.")

SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same data.")]


@app.command()
def synth(
    out: Annotated[
        Path,
        typer.Argument(parser=named_path, metavar="OUT", help="Folder to write; must be empty or absent."),
    ],
    train: Annotated[int, typer.Option("--train", min=0, help="Training images.")] = 3672,
    valid: Annotated[int, typer.Option("--valid", min=0, help="Validation images.")] = 477,
    seed: SeedOption = 0,
    size: Annotated[
        str, typer.Option("--size", help="WIDTHxHEIGHT; frames have this area, in several shapes.")
    ] = "640x480",
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes, at most 4 per core; default: 1 per core."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write OUT/{train,valid}/*.jpg with COCO polygons of every visible head."""
    from fasteomt.data.synth import write_dataset

    with _bar("images") as progress:
        write_dataset(
            out,
            train=train,
            valid=valid,
            size=_size(size),
            seed=seed,
            workers=workers or os.cpu_count() or 1,
            overwrite=overwrite,
            progress=progress,
        )
    typer.echo(f"{out}: {train} training and {valid} validation images")


@app.command()
def clip(
    out: Annotated[Path, typer.Argument(help="Video to write, .mp4; true masks go beside it as .masks.mkv.")],
    width: Annotated[int, typer.Option("--width", help="Pixels.")] = 1900,
    height: Annotated[int, typer.Option("--height", help="Pixels.")] = 1440,
    frames: Annotated[int, typer.Option("--frames", min=1)] = 126,
    fps: Annotated[float, typer.Option("--fps", help="Frames per second.")] = 25.0,
    bitrate: Annotated[str, typer.Option("--bitrate", help="Bits per second, as 8M or 500k.")] = "8M",
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Write an H.264 clip of moving heads, and its true masks as lossless FFV1 (0 background, 1 head)."""
    from fasteomt.data.clip import write_clip

    with _bar("frames") as progress:
        masks = write_clip(
            out,
            width=width,
            height=height,
            frames=frames,
            fps=fps,
            bitrate=_bits(bitrate),
            seed=seed,
            overwrite=overwrite,
            progress=progress,
        )
    typer.echo(f"{out}: {frames} frames, true masks in {masks}")


@contextmanager
def _bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(unit, total=None)

    def update(done: int, total: int) -> None:
        bar.start()  # only now, so that refused arguments are answered with one line
        bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if bar.live.is_started:  # stopping prints an empty line
            bar.stop()


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    if found is None:
        raise InputError(f"--size '{text[:40]}': write it as WIDTHxHEIGHT, such as 640x480")
    return int(found[1]), int(found[2])


def _bits(text: str) -> int:
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text if factor == 1 else text[:-1]
    try:
        bits = round(float(digits) * factor)
    except (ValueError, OverflowError):
        bits = 0
    if bits <= 0:
        raise InputError(f"--bitrate '{text[:40]}': write a positive number, such as 8M or 500k")
    return bits
