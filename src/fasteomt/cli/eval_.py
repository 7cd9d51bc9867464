"""`fasteomt eval`: per-class IoU of a model on a data set."""

from __future__ import annotations

import math
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fasteomt import __version__
from fasteomt.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    ModelOption,
    OverwriteOption,
    StackOption,
    named_path,
)
from fasteomt.cli.output import output
from fasteomt.data.dataset import SegmentationSet, open_dataset
from fasteomt.errors import InputError
from fasteomt.evaluate import Evaluation, check_classes, evaluate
from fasteomt.files import check_target, find_replaced, write_json
from fasteomt.provenance import commit, source_digest


def eval_(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            parser=named_path,
            metavar="<path>",
            help="Data set: the folder that holds train/ and valid/.",
        ),
    ],
    model: ModelOption = DEFAULT_MODEL,
    split: Annotated[str, typer.Option("--split", help="Folder of the data set to evaluate.")] = "valid",
    device: DeviceOption = "auto",
    stack: StackOption = "fp32",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N images.")] = None,
    peer: Annotated[
        Literal["upstream_predict"] | None,
        typer.Option("--peer", help="Evaluate LightlyTrain's own predict instead, for comparison."),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", parser=named_path, metavar="<path>", help="Also write the figures here."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Compare predicted masks with true ones: IoU per class over the whole data set, mean, pixel accuracy."""
    if json_path is not None:
        # Before the work, not after it; write_json asks again.
        check_target(json_path, overwrite=overwrite)
    dataset = open_dataset(data, split)
    if json_path is not None:
        _check_kept(json_path, model, dataset)
    notes = Console(stderr=True)
    for warning in dataset.warnings:
        notes.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    predictor, name = _load(model, device, stack, peer)
    check_classes(predictor.spec.names, dataset.classes)
    # What is running now, even if the files change in the meantime.
    source = {"commit": commit(), "source": source_digest()}

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task("evaluating", total=min(len(dataset), limit or len(dataset)))
        result = evaluate(
            predictor.predict_rgb,
            predictor.spec.names,
            dataset,
            limit=limit,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    try:
        # The file first: whoever reads the table may stop reading.
        if json_path is not None:
            record = _record(result, dataset, limit) | {
                "fasteomt": __version__,
                **source,
                "predictor": name,
                "model": predictor.source,
                "model_sha256": predictor.sha256,
                "stack": stack,
                "device": str(predictor.device),
                "data": str(data),
                "split": split,
            }
            write_json(json_path, record, overwrite=overwrite)
    finally:
        _print(result, f"{predictor.source} | {name} | {data} {split} | {predictor.device}")


def _check_kept(json_path: Path, model: str, dataset: SegmentationSet) -> None:
    """Raise InputError if the figures would replace what they are about."""
    images = [sample.image_path for sample in dataset]
    found = find_replaced([_model_file(model), *dataset.label_files, *images], [json_path])
    if found is not None:
        raise InputError(
            f"--json {json_path} would replace {found[0]}, which is evaluated: name another file"
        )


def _model_file(model: str) -> Path:
    """The file behind a shipped model's name; a file of that name goes first, as it does in loading."""
    from fasteomt.checkpoint import SHIPPED

    return Path(model) if Path(model).exists() else SHIPPED.get(model, Path(model))


def _load(model: str, device: str, stack: str, peer: str | None) -> tuple[Any, str]:
    """A predictor and the name under which its figures go."""
    # Both pull in torch, which `--help` and wrong arguments needn't wait for.
    if peer is None:
        from fasteomt.predictor import load

        return load(model, device=device, stack=stack), f"fasteomt {stack}"
    if stack != "fp32":
        raise InputError(
            f"--stack {stack} has no meaning for {peer}, which is LightlyTrain in fp32: leave it out"
        )
    from fasteomt.peers.upstream import load_upstream

    return load_upstream(model, device), f"{peer} (lightly-train {version('lightly-train')})"


def _record(result: Evaluation, dataset: SegmentationSet, limit: int | None) -> dict[str, Any]:
    report = asdict(result.report)
    for key in ("mean_iou", "pixel_accuracy"):
        if math.isnan(report[key]):
            report[key] = None
    return report | {
        "images": result.images,
        "images_in_split": len(dataset),
        "limit": limit,
        "images_per_s": result.images_per_s,
        "seconds": result.seconds,
        "classes": {str(key): name for key, name in dataset.classes.items()},
        "ignore": dataset.ignore,
        "dataset_sha256": dataset.digest(),
        "warnings": dataset.warnings,
    }


def _print(result: Evaluation, title: str) -> None:
    report = result.report
    table = Table("id", "class", "IoU", "true pixels", "predicted pixels")
    for score in report.scores:
        iou = "absent" if score.iou is None else f"{score.iou:.4f}"
        table.add_row(
            str(score.id), escape(score.name), iou, f"{score.true_pixels:,}", f"{score.predicted_pixels:,}"
        )
    console = output()
    console.print(escape(title), soft_wrap=True, highlight=False)
    console.print(table)
    rate = "one image only" if result.images_per_s is None else f"{result.images_per_s:.2f} images/s"
    lines = [
        f"mean IoU {report.mean_iou:.4f}, pixel accuracy {report.pixel_accuracy:.4f} "
        f"over {result.images} images, {report.pixels:,} pixels ({report.ignored_pixels:,} ignored)",
        f"prediction {rate}; {result.seconds:.1f} s with reading and scoring",
    ]
    if report.absent:
        lines.append(f"absent, not in the mean: {', '.join(str(key) for key in report.absent)}")
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)
