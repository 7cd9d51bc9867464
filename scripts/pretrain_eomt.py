"""Pre-train DINOv3 + EoMT from scratch, fast, on generated heads or on a data set of your own.

    python scripts/pretrain_eomt.py --model vitt16 --seconds 240 --compile --out pretrained.pt
    torchrun --nproc-per-node 2 scripts/pretrain_eomt.py ...      # on two GPUs

LightlyTrain's loop matches queries to masks image by image on the host and loads images on the CPU; a small
backbone that has everything to learn then waits for most of the time. This one does neither (see
`fasteomt.train.pretrain`), and that loop can go on from what it writes:
`train_dinov3_eomt_head.py --model pretrained.pt`. Beside the export it writes what it did: pretrained.json.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from fasteomt.checkpoint import read, write_export
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.data.dataset import open_dataset
from fasteomt.data.fresh import CLASSES, FreshHeads, fresh_head, largest_side
from fasteomt.data.processes import map_in_processes
from fasteomt.engine import resolve_device
from fasteomt.errors import InputError
from fasteomt.files import write_json
from fasteomt.model.spec import ModelSpec
from fasteomt.provenance import commit, source_digest
from fasteomt.train.pretrain import Course, Windowed, intersection_over_union, process_group, train
from fasteomt.train.resident import Resident

NAME = "pretrain_eomt"
GENERATED_SIZE = (640, 480)
SNAPSHOT_SECONDS = 60.0

logger = logging.getLogger(NAME)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    p = OneLineParser(prog=NAME, description="Pre-train DINOv3 + EoMT with a fixed assignment.")
    p.add_argument(
        "--data-root", type=Path, help="folder that holds train/ and valid/; without it, heads are generated"
    )
    p.add_argument("--model", default="vitt16", help="architecture")
    p.add_argument("--start", type=Path, metavar="EXPORT", help="go on from the weights of an earlier run")
    p.add_argument("--out", type=Path, required=True, help="the export to write; must not exist")
    p.add_argument("--seconds", type=float, default=240, help="length of the training, schedule included")
    p.add_argument(
        "--batch-size", type=int, default=64, help="windows a step and GPU; whole crops are a quarter as many"
    )
    p.add_argument("--image-size", type=int, default=512, help="side of a whole crop, pixels")
    p.add_argument("--learning-rate", type=float, default=1.2e-3)
    p.add_argument("--compile", action="store_true", help="torch.compile the model: pays from a minute on")
    p.add_argument("--images", type=int, default=12000, help="generated images kept at a time on each GPU")
    p.add_argument("--held-out", type=int, default=160, help="generated images to measure the result on")
    p.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes that read or draw images, in all"
    )
    p.add_argument("--device", default="auto")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log-every", type=int, default=240, metavar="STEPS")
    args = p.parse_args(arguments)
    return exit_code(NAME, lambda: pretrain(args))


def pretrain(args: argparse.Namespace) -> None:
    """Check the arguments, train, measure, write the export and its record."""
    record_path = args.out.with_suffix(".json")
    for path in (args.out, record_path):
        if path.exists():
            raise InputError(f"{path} exists: choose another --out")
    local = os.environ.get("LOCAL_RANK", "0")
    device = resolve_device(
        f"cuda:{local}" if args.device == "auto" and torch.cuda.is_available() else args.device
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with process_group(device) as (rank, world), contextlib.ExitStack() as stack:
        logging.basicConfig(
            level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s", stream=sys.stderr
        )
        workers = max(1, args.workers // world)
        if args.data_root is None:
            classes, data, held, fresh = _generated(args, device, workers, rank, world)
            stack.enter_context(fresh)
            started = time.monotonic()
            data.put(fresh.take(args.images, least=min(args.images, 1024)))
            logger.info("%d images in memory after %.0f s", len(data), time.monotonic() - started)
        else:
            train_set, valid_set = (open_dataset(args.data_root, split) for split in ("train", "valid"))
            if len(train_set.classes) > 200 or min(train_set.classes) < 0 or max(train_set.classes) > 65535:
                raise InputError(f"{args.data_root}: needs at most 200 classes with ids 0 to 65535")
            classes, fresh = train_set.classes, None
            data, held = (Resident.load(split, device, workers) for split in (train_set, valid_set))
            logger.info("%d + %d images in memory", len(data), len(held))
        spec = ModelSpec.from_name(
            args.model, class_ids=tuple(classes), class_names=tuple(classes.values()),
            image_size=(args.image_size, args.image_size),
        )  # fmt: skip
        torch.manual_seed(args.seed)  # the same weights everywhere
        model = Windowed(spec)
        if args.start:
            model.eomt.load_state_dict(start_weights(args.start, spec))
        model.to(device)
        torch.manual_seed(args.seed + rank)  # other windows on each GPU
        course = Course(args.seconds, args.batch_size, args.learning_rate, args.compile, args.log_every)

        def save(path: Path) -> None:
            if rank == 0:
                weights = {k: v.cpu() for k, v in model.eomt.state_dict().items()}
                write_export(path, spec, weights, overwrite=path != args.out)

        snapshot = args.out.with_suffix(".snapshot.pt")
        work = train(model, data, fresh, course, _every(SNAPSHOT_SECONDS, lambda: save(snapshot)))
        if rank:
            return
        with torch.autocast(device.type, torch.bfloat16):
            scores = intersection_over_union(model.eval(), held, max(1, args.batch_size // 4))
        iou = dict(zip(spec.class_names, scores, strict=True))
        named = ", ".join(f"{name} {value:.4f}" for name, value in iou.items())
        logger.info("%d steps; IoU on the middle of held-out images: %s", work.steps, named)
        save(args.out)
        snapshot.unlink(missing_ok=True)
        write_json(
            record_path,
            {
                "command": shlex.join([f"scripts/{NAME}.py", *sys.argv[1:]]),
                "gpus": world,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
                "versions": {"python": platform.python_version(), "torch": torch.__version__},
                "commit": commit(),
                "source": source_digest(),
                "data": str(args.data_root) if args.data_root else f"generated, seed {args.seed}",
                **asdict(work),
                "iou_middle": iou,
                "held_out_images": len(held),
            },
        )


def _generated(
    args: argparse.Namespace, device: torch.device, workers: int, rank: int, world: int
) -> tuple[dict[int, str], Resident, Resident, FreshHeads]:
    """Classes, room for training images, held-out images (of the other photos), and what draws the former."""
    side = largest_side(*GENERATED_SIZE)
    data, held = (Resident(n, side, list(CLASSES), device) for n in (args.images, args.held_out))
    if rank == 0:
        draw = functools.partial(fresh_head, args.seed, "valid", GENERATED_SIZE)
        held.put(list(map_in_processes(draw, range(args.held_out), workers)))
    return CLASSES, data, held, FreshHeads(args.seed, GENERATED_SIZE, workers, rank, world)


def _every(seconds: float, work: Callable[[], None]) -> Callable[[], None]:
    """A function that does the work when called `seconds` or more after the last time."""
    last = time.monotonic()

    def maybe() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            work()
            last = time.monotonic()

    return maybe


def start_weights(path: Path, spec: ModelSpec) -> dict[str, Tensor]:
    """Weights of an earlier run, widened to fp32.

    Raises:
        InputError: it is another model.
    """
    found = read(path)
    if found.spec != spec:
        raise InputError(
            f"{path}: is {found.spec.name} with classes {found.spec.names}, not what is trained here"
        )
    return {name: weight.float() for name, weight in found.weights.items()}


if __name__ == "__main__":
    sys.exit(main())
