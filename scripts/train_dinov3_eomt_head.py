"""Baseline: train a DINOv3 + EoMT model with unmodified LightlyTrain on a COCO data set.

    python scripts/train_dinov3_eomt_head.py --data-root DATA_ROOT --backbone-weights W.pth --runs-root runs \
        --model dinov3/vitb16-eomt --epochs 20 --batch-size auto

Reads DATA_ROOT/{train,valid}/_annotations.coco.json (or images/ and masks/ folders). Everything that has no
option here keeps LightlyTrain's default. The run's folder gets LightlyTrain's own output (train.log,
checkpoints/, exported_models/) and beside it `best.pth` and `last.pth` (the exports of the best and the last
step under fixed names; `lightly_train.load_model` and `fasteomt` both open them) and `run_config.json`.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch

from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.compat.lightly_training import (
    DEFAULT_BATCH_SIZE,
    backbone_name,
    largest_batch,
    random_backbone,
)
from fasteomt.data.dataset import SegmentationSet, open_dataset
from fasteomt.data.folders import export_masks
from fasteomt.errors import (
    CheckpointError,
    InputError,
    InterruptedRun,
    PartialResultError,
    UnsupportedError,
    need,
)
from fasteomt.files import write_json

NAME = "train_dinov3_eomt_head"
EXPORTS = {"best.pth": "exported_best.pt", "last.pth": "exported_last.pt"}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def batch_size(text: str) -> int | None:
    return None if text == "auto" else positive(text)


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(prog=NAME, description="Train DINOv3 + EoMT with unmodified LightlyTrain.")
    p.add_argument("--data-root", type=Path, required=True, help="folder that holds train/ and valid/")
    p.add_argument("--model", default="dinov3/vitb16-eomt", help="LightlyTrain's name, or a checkpoint")
    weights = p.add_mutually_exclusive_group()
    weights.add_argument("--backbone-weights", type=Path, metavar="W.pth", help="DINOv3 state dict")
    weights.add_argument(
        "--from-scratch", action="store_true", help="random; without either, LightlyTrain downloads weights"
    )
    p.add_argument("--backbone-freeze", action="store_true", help="train only joint blocks and head")
    p.add_argument("--runs-root", type=Path, default=Path("runs"), help="the run gets a new folder in it")
    p.add_argument("--out", type=Path, help="the run's folder itself instead; must be empty")
    p.add_argument("--epochs", type=positive, default=20)
    p.add_argument("--steps", type=positive, help="optimizer steps, instead of --epochs")
    p.add_argument("--batch-size", type=batch_size, default="auto", help="images, or 'auto': all that fit")
    p.add_argument("--skip-batch-probe", action="store_true", help="'auto' is then upstream's default, 16")
    p.add_argument("--precision", default="bf16-mixed", choices=["bf16-mixed", "16-mixed", "32-true"])
    p.add_argument(
        "--matmul-precision",
        default="auto",
        choices=["auto", "highest", "high", "medium"],
        help="of fp32 products; 'high' is TF32, 'auto' leaves torch's setting",
    )
    p.add_argument("--learning-rate", type=float, help="at batch 16; upstream scales it by sqrt(batch / 16)")
    p.add_argument("--layer-decay", type=float, help="learning rate factor from a block to the one before it")
    p.add_argument(
        "--warmup-steps", type=int, nargs=2, metavar=("HEAD", "BACKBONE"), help="one after the other"
    )
    p.add_argument("--image-size", type=positive, help="side of the square training crop, pixels")
    p.add_argument("--val-every", type=positive, metavar="STEPS", help="validate this often, and at the end")
    p.add_argument("--workers", type=int, help="data loading processes")
    p.add_argument(
        "--devices", type=positive, default=1, help="GPUs; several need a --batch-size, their total"
    )
    p.add_argument("--seed", type=int, default=0)
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parser().parse_args(arguments)
    return exit_code(NAME, lambda: train(args))


def train(args: argparse.Namespace) -> Path:
    """Train as the options say; returns the run's folder (for further GPUs' processes, no folder).

    Raises:
        FastEomtError: one line that says what is wrong.
    """
    # LightlyTrain reports usage over the network otherwise.
    os.environ.setdefault("LIGHTLY_TRAIN_EVENTS_DISABLED", "1")
    lightly_train = need("lightly_train", extra="train")
    splits = {split: open_dataset(args.data_root, split) for split in ("train", "valid")}
    check(args, splits)
    # LightlyTrain starts this script once more for each further GPU; the first process owns the folder.
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    run = run_folder(args) if first else Path()
    model_args = given(
        backbone_freeze=args.backbone_freeze or None,
        lr=args.learning_rate,
        llrd=args.layer_decay,
        lr_warmup_steps=args.warmup_steps and tuple(args.warmup_steps),
    )
    transform_args = given(image_size=args.image_size and (args.image_size, args.image_size))
    if args.matmul_precision != "auto":
        # LightlyTrain 0.16.2 resolves its `float32_matmul_precision` but never applies it to this task.
        torch.set_float32_matmul_precision(args.matmul_precision)
    batch = choose_batch(args, splits, model_args, transform_args)
    accumulated = max(1, DEFAULT_BATCH_SIZE // batch)
    steps = args.steps or math.ceil(len(splits["train"]) / (batch * accumulated)) * args.epochs

    with tempfile.TemporaryDirectory(prefix="fasteomt_") as scratch:
        processes = os.cpu_count() or 1 if args.workers is None else args.workers
        folders = {
            split: export_masks(data, Path(scratch) / split, workers=processes)
            for split, data in splits.items()
        }
        if args.from_scratch:
            model_args["backbone_weights"] = f"{scratch}/random_backbone.pth"
            random_backbone(args.model, args.seed, Path(model_args["backbone_weights"]))
        elif args.backbone_weights:
            model_args["backbone_weights"] = str(args.backbone_weights)
        config = {
            "command": [NAME, *sys.argv[1:]],
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "versions": versions(lightly_train),
            "data_root": str(args.data_root.resolve()),
            "images": {split: len(data) for split, data in splits.items()},
            "data_warnings": {split: data.warnings for split, data in splits.items()},
            "batch_size": batch,
            "images_per_step": batch * accumulated,
            "steps": steps,
            "options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
            "files": {name: f"copy of exported_models/{export}" for name, export in EXPORTS.items()},
        }
        if first:
            write_json(run / "run_config.json", config, overwrite=True)
        started = time.monotonic()
        run_upstream(
            run,
            lambda: lightly_train.train_semantic_segmentation(
                out=run,
                # `run` was empty; run_config.json is ours.
                overwrite=True,
                data={
                    "train": folders["train"],
                    "val": folders["valid"],
                    "classes": splits["train"].classes,
                },
                model=args.model,
                steps=steps,
                batch_size=batch,
                num_workers="auto" if args.workers is None else args.workers,
                devices=args.devices,
                precision=args.precision,
                float32_matmul_precision=args.matmul_precision,
                seed=args.seed,
                model_args=model_args or None,
                transform_args=transform_args or None,
                logger_args=given(val_every_num_steps=args.val_every) or None,
            ),
        )
        config["seconds"] = round(time.monotonic() - started, 1)
    if not first:
        return run
    for name, export in EXPORTS.items():
        shutil.copyfile(run / "exported_models" / export, run / name)
    write_json(run / "run_config.json", config, overwrite=True)
    print(f"{NAME}: {steps} steps of {batch * accumulated} images in {config['seconds']} s, models in {run}")
    return run


def check(args: argparse.Namespace, splits: dict[str, SegmentationSet]) -> None:
    """What would otherwise fail late, or not at all."""
    for split, data in splits.items():
        if len(data) == 0:
            raise InputError(f"{args.data_root}/{split} has no images: give a data set with labelled images")
        if data.classes != splits["train"].classes:
            raise InputError(f"{args.data_root}: train and valid name different classes: make them the same")
    count = len(splits["train"])
    if isinstance(args.batch_size, int) and args.batch_size > count:
        raise InputError(f"--batch-size {args.batch_size} is more than the {count} training images: lower it")
    if args.devices > 1 and args.batch_size is None and not args.skip_batch_probe:
        raise InputError(f"--devices {args.devices}: the batch probe is for one GPU: give a --batch-size")
    if Path(args.model).exists():
        if args.from_scratch or args.backbone_weights:
            raise InputError(f"--model {args.model} brings its own weights: drop the other weights option")
    else:
        backbone_name(args.model)
    if args.backbone_weights:
        check_backbone_weights(args.backbone_weights)


def check_backbone_weights(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"no such file: --backbone-weights {path}: check the path")
    try:
        state = torch.load(path, map_location="meta", weights_only=True, mmap=False)
    except Exception as error:
        raise CheckpointError(f"{path}: not a plain DINOv3 state dict ({type(error).__name__})") from None
    if not isinstance(state, dict) or "patch_embed.proj.weight" not in state:
        raise CheckpointError(f"{path}: holds no DINOv3 backbone: it needs patch_embed.proj.weight")


def run_folder(args: argparse.Namespace) -> Path:
    run: Path = args.out or args.runs_root / f"{Path(args.model).name}_{datetime.now():%Y%m%d_%H%M%S}"
    try:
        if run.exists() and (not run.is_dir() or any(run.iterdir())):
            raise InputError(f"{run} is not an empty folder: choose another --out")
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{run}: can't be created: {error.strerror or error}") from None
    return run


def choose_batch(
    args: argparse.Namespace,
    splits: dict[str, SegmentationSet],
    model_args: dict[str, Any],
    transform_args: dict[str, Any],
) -> int:
    """The batch size asked for, or for 'auto' the largest one that fits the GPU."""
    if isinstance(args.batch_size, int):
        return args.batch_size
    limit = len(splits["train"])
    if args.skip_batch_probe or not torch.cuda.is_available():
        return min(DEFAULT_BATCH_SIZE, limit)
    name = args.model
    if Path(name).exists():
        from fasteomt.checkpoint import read

        name = read(name).spec.name
    return largest_batch(
        name,
        classes=splits["train"].classes,
        model_args=model_args,
        transform_args=transform_args,
        precision=args.precision,
        crops=max(math.ceil(max(s.size) / min(s.size)) for s in splits["valid"]),
        limit=limit,
    )


def run_upstream(run: Path, call: Any) -> None:
    """Run LightlyTrain's loop; failures that a user can act on become one line."""
    try:
        call()
    except KeyboardInterrupt:
        raise InterruptedRun(f"interrupted: what was finished until then is in {run}") from None
    except torch.cuda.OutOfMemoryError:
        raise PartialResultError(f"GPU memory ran out: use a smaller --batch-size (run: {run})") from None
    except URLError as error:
        raise UnsupportedError(
            f"can't download pretrained weights ({error.reason}): use --backbone-weights or --from-scratch"
        ) from None


def given(**options: Any) -> dict[str, Any]:
    """Only those that the user gave: for the others LightlyTrain's defaults hold."""
    return {k: v for k, v in options.items() if v is not None}


def versions(lightly_train: Any) -> dict[str, str]:
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightly_train": lightly_train.__version__,
        "transformers": transformers.__version__,
        "device": device,
    }


if __name__ == "__main__":
    sys.exit(main())
