"""Pre-train DINOv3 + EoMT from scratch, fast, on generated heads or on a data set of your own.

    python scripts/pretrain_eomt.py --model vitt16 --seconds 240 --compile --out pretrained.pt
    torchrun --nproc-per-node 2 scripts/pretrain_eomt.py ...      # on two GPUs
    python scripts/pretrain_eomt.py --model vitb16 --start pretrained.pt --learning-rate 1e-4 ...

The last grows a larger model out of what the first wrote (see `fasteomt.train.grow`): it knows from the start
what that one knew, and the rate must be low enough for it not to forget.

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

from fasteomt.checkpoint import Checkpoint, read, write_export
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.data.dataset import SegmentationSet, open_dataset
from fasteomt.data.fresh import CLASSES, FreshHeads, fresh_head, largest_side
from fasteomt.data.processes import map_in_processes
from fasteomt.engine import resolve_device
from fasteomt.errors import FastEomtError, InputError, InterruptedRun, PartialResultError
from fasteomt.files import check_target, write_json
from fasteomt.model.spec import ModelSpec
from fasteomt.provenance import commit, source_digest
from fasteomt.train.distributed import process_group
from fasteomt.train.grow import grown, shallow
from fasteomt.train.pretrain import Course, Windowed, intersection_over_union, train
from fasteomt.train.resident import Resident

NAME = "pretrain_eomt"
GENERATED_SIZE = (640, 480)
SNAPSHOT_SECONDS = 60.0
LIMITS = {
    "seconds": 10_000_000, "batch_size": 65_536, "images": 100_000_000, "held_out": 100_000_000,
    "learning_rate": 1e30, "workers": 4096, "log_every": 1_000_000_000, "grow": 1000,
}  # fmt: skip
MOST_MASSIVE = 1_000_000
GROW_SHARE = 0.6  # of the time, for the shallow model

logger = logging.getLogger(NAME)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    p = OneLineParser(prog=NAME, description="Pre-train DINOv3 + EoMT with a fixed assignment.")
    p.add_argument(
        "--data-root", type=Path, help="folder that holds train/ and valid/; without it, heads are generated"
    )
    p.add_argument("--model", default="vitt16", help="architecture")
    p.add_argument(
        "--start", type=Path, metavar="EXPORT",
        help="go on from the weights of an earlier run; a narrower or shallower model is grown first",
    )  # fmt: skip
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
    p.add_argument(
        "--grow", type=int, default=1, metavar="TIMES",
        help="train a model of a TIMES-th of the blocks first, then repeat each: for deep ones in minutes",
    )  # fmt: skip
    p.add_argument(
        "--massive", type=float, default=0.0, metavar="VALUE",
        help="start the register tokens with a channel of this value, for a model with massive activations",
    )  # fmt: skip
    p.add_argument("--device", default="auto")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log-every", type=int, default=240, metavar="STEPS")
    args = p.parse_args(arguments)
    return exit_code(NAME, lambda: pretrain(args))


def pretrain(args: argparse.Namespace) -> None:
    """Check the arguments, train, measure, write the export and its record.

    Raises:
        FastEomtError: one line that says what is wrong, and where the weights so far are kept.
    """
    if args.out.suffix != ".pt":
        raise InputError(f"--out '{args.out}': name a .pt file; the record goes beside it as .json")
    snapshot, record_path = (args.out.with_suffix(suffix) for suffix in (".snapshot.pt", ".json"))
    check(args, (args.out, snapshot, record_path))
    sets = None
    if args.data_root is not None:
        sets = [open_dataset(args.data_root, split) for split in ("train", "valid")]
    classes = CLASSES if sets is None else classes_of(sets)
    stages = stages_of(args, classes)
    weights = None
    made_by = {"commit": commit(), "source": source_digest()}
    if args.start:
        start = read(args.start)
        weights = start_weights(start, stages[0][0], args.seed)
        made_by["start"] = start.sha256
    on_gpus = args.device == "auto" and torch.cuda.is_available()
    device = resolve_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpus else args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with process_group(device) as (rank, world), contextlib.ExitStack() as stack:
        logging.basicConfig(
            level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s", stream=sys.stderr
        )
        workers, fresh = max(1, args.workers // world), None
        if sets is None:
            data, held = _room_for_generated(args, device, workers, rank)
            fresh = stack.enter_context(FreshHeads(args.seed, GENERATED_SIZE, workers, rank, world))
            started = time.monotonic()
            data.put(fresh.take(args.images, least=min(args.images, 1024)))
            logger.info("%d images in memory after %.0f s", len(data), time.monotonic() - started)
        else:
            data, held = (Resident.load(split, device, workers) for split in sets)
            logger.info("%d + %d images in memory", len(data), len(held))
        works, kept = [], False
        for stage, (spec, share) in enumerate(stages):
            torch.manual_seed(args.seed)  # the same weights everywhere
            model = Windowed(spec, args.massive)
            if weights is not None:
                model.eomt.load_state_dict(
                    weights if stage == 0 else grown(weights, stages[0][0], spec, args.seed)
                )
            model.to(device)
            torch.manual_seed(args.seed + rank + world * stage)  # other windows on each GPU

            def keep(model: Windowed = model) -> None:
                nonlocal kept
                if rank == 0:
                    _save(model, snapshot, overwrite=kept)
                    kept = True

            course = Course(
                share * args.seconds, args.batch_size, args.learning_rate, args.compile, args.log_every
            )
            try:
                works.append(train(model, data, fresh, course, _every(SNAPSHOT_SECONDS, keep)))
            except KeyboardInterrupt:
                keep()
                raise InterruptedRun(f"interrupted: go on with --start {snapshot}") from None
            except FastEomtError as error:
                if not kept:
                    raise
                raise PartialResultError(f"{error}; weights of before are in {snapshot}") from None
            weights = {name: weight.cpu() for name, weight in model.eomt.state_dict().items()}
        if rank:
            return
        keep()  # whatever happens to the rest, the training isn't lost
        with torch.autocast(device.type, torch.bfloat16):
            scores = intersection_over_union(model.eval(), held, max(1, args.batch_size // 4))
        iou = dict(zip(spec.class_names, scores, strict=True))
        named = ", ".join(f"{name} {value:.4f}" for name, value in iou.items())
        logger.info("IoU on the middle of held-out images: %s", named)
        record = {
            "command": shlex.join([f"scripts/{NAME}.py", *sys.argv[1:]]),
            "gpus": world,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            **made_by,
            "data": str(args.data_root) if args.data_root else f"generated, seed {args.seed}",
            **{key: sum(asdict(work)[key] for work in works) for key in asdict(works[0])},
            "images": world * data.put_so_far,
            "iou_middle": iou,
            "held_out_images": len(held),
        }
        try:
            _save(model, args.out)
            write_json(record_path, record)
        except FastEomtError as error:
            raise PartialResultError(f"{error}; the weights are in {snapshot}") from None
        snapshot.unlink()


def check(args: argparse.Namespace, targets: Sequence[Path]) -> None:
    """Raise InputError for arguments that can't be, and for files that are in the way."""
    for path in targets:
        check_target(path)
        _try_to_write(path)
    for name, most in LIMITS.items():
        if not 0 < getattr(args, name) <= most:
            option = f"--{name.replace('_', '-')} {getattr(args, name)}"
            raise InputError(f"{option}: must be more than 0, and {most:,} at most")
    if not 0 <= args.seed < 1 << 62:
        raise InputError(f"--seed {args.seed}: must be 0 to 2^62 - 1")
    if not abs(args.massive) <= MOST_MASSIVE:
        raise InputError(f"--massive {args.massive}: must be a number up to {MOST_MASSIVE:,}")
    if args.massive and args.start:
        raise InputError("--massive: --start brings register tokens of its own: leave one of them out")


def _try_to_write(path: Path) -> None:
    """With a file of another name as long: only that shows names too long and folders that aren't real."""
    trial = path.with_name(path.name[:-1] + "~")
    if os.environ.get("RANK", "0") == "0" and not os.path.lexists(trial):
        try:
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise InputError(f"{path}: can't be written: {error.strerror}: choose another name") from None


def classes_of(sets: Sequence[SegmentationSet]) -> dict[int, str]:
    """The classes of a training and a validation set.

    Raises:
        InputError: they differ, or are more or other than can be trained.
    """
    first, second = sets
    if first.classes != second.classes:
        raise InputError(f"{first.root} and {second.root} differ in classes: make them the same")
    if min(first.classes) < 0 or max(first.classes) > 65535:
        raise InputError(f"{first.root}: needs class ids of 0 to 65535")
    for line in (*first.warnings, *second.warnings):
        logger.warning("%s", line)
    return first.classes


def stages_of(args: argparse.Namespace, classes: dict[int, str]) -> list[tuple[ModelSpec, float]]:
    """The models to train one after the other, and each one's share of the time.

    With --grow a shallow model comes first, and its blocks repeated are where the deep one starts.

    Raises:
        InputError: no such model, or one that can't be trained so.
    """
    spec = ModelSpec.from_name(
        args.model, class_ids=tuple(classes), class_names=tuple(classes.values()),
        image_size=(args.image_size, args.image_size),
    )  # fmt: skip
    if spec.patch_size & (spec.patch_size - 1):
        raise InputError(
            f"--model {args.model}: patches of {spec.patch_size} can't be trained: take 16 or 32"
        )
    if args.image_size % (2 * spec.patch_size):
        raise InputError(f"--image-size {args.image_size}: must be a multiple of {2 * spec.patch_size}")
    if len(classes) > spec.num_queries:
        raise InputError(f"{len(classes)} classes: each needs a query, and there are {spec.num_queries}")
    if args.grow == 1:
        return [(spec, 1.0)]
    return [(shallow(spec, args.grow), GROW_SHARE), (spec, 1 - GROW_SHARE)]


def _save(model: Windowed, path: Path, *, overwrite: bool = False) -> None:
    weights = {name: weight.cpu() for name, weight in model.eomt.state_dict().items()}
    write_export(path, model.eomt.spec, weights, overwrite=overwrite)


def _room_for_generated(
    args: argparse.Namespace, device: torch.device, workers: int, rank: int
) -> tuple[Resident, Resident]:
    """Room for training images, and held-out images, which show other photos."""
    side = largest_side(*GENERATED_SIZE)
    data, held = (Resident(n, side, list(CLASSES), device) for n in (args.images, args.held_out))
    if rank == 0:
        draw = functools.partial(fresh_head, args.seed, "valid", GENERATED_SIZE)
        held.put(list(map_in_processes(draw, range(args.held_out), workers)))
    return data, held


def _every(seconds: float, work: Callable[[], None]) -> Callable[[], None]:
    """A function that does the work when called `seconds` or more after the last time."""
    last = time.monotonic()

    def maybe() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            work()
            last = time.monotonic()

    return maybe


def start_weights(found: Checkpoint, spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """Weights of an earlier run in fp32, grown if its model was smaller.

    Raises:
        InputError: it is a model that this one can't go on from.
    """
    weights = {name: weight.float() for name, weight in found.weights.items()}
    if not all(weight.isfinite().all() for weight in weights.values()):
        raise InputError(f"{found.source}: has weights that are no finite numbers: start from another")
    if found.spec == spec:
        return weights
    try:
        return grown(weights, found.spec, spec, seed)
    except InputError as error:
        raise InputError(f"{found.source}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
