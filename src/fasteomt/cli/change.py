"""What the speed.py of every round of kind 'change' does: its stack beside its parent's and the peers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fasteomt.bench.ceilings import measure_ceilings
from fasteomt.bench.ladder import patch_of, stack_of
from fasteomt.bench.profile_rows import stack_profile_rows
from fasteomt.bench.ready import ready_rows
from fasteomt.bench.results import GateRecord, Measured
from fasteomt.bench.rows import model_rows
from fasteomt.checkpoint import resolve
from fasteomt.cli.round import finish, log_progress, options
from fasteomt.cli.script import exit_code
from fasteomt.engine import resolve_device
from fasteomt.errors import InputError, one_line
from fasteomt.files import require_file
from fasteomt.gates.verdict import Verdict
from fasteomt.stacks import Stack

BESIDE = ("graph_bf16", "eager_bf16")  # peers that every round shows, at the first of its work
TWO_CROPS = ((2, 1),)


def measure_change(
    script: str, title: str, *, against: str | None = None, work: Sequence[tuple[int, int]] = TWO_CROPS
) -> int:
    """Measure the round that `script` is the speed.py of: `model_ms`, and a profile of two crops.

    Args:
        against: the peer that ratios are to; by default they are to the parent's stack, and round 1's, whose
            parent is plain fp32, to `eager_bf16`.
        work: crops of a frame and frames a replay, each of which is measured; the peers of `BESIDE` at the
            first alone, unless ratios are to one of them.
    """
    folder = Path(script).resolve().parent
    p = options(folder.name.partition("_")[0], title, "vitl16,vitb16")
    p.add_argument(
        "--gate", action="append", default=[], type=Path, metavar="FILE",
        help="verdicts on these models, from fasteomt gate --json; may be repeated",
    )  # fmt: skip
    p.add_argument(
        "--ready", action="store_true", help="also how long new processes take to their first result: minutes"
    )
    args = p.parse_args()
    log_progress()

    def measured(device: torch.device) -> Iterator[Measured]:
        own, parent = stack_of(folder), patch_of(folder).PARENT
        stacks = [own] if parent is None else [stack_of(folder.parent / parent), own]
        baseline = against or ("eager_bf16" if parent is None else stacks[0].name)
        subjects: list[str | Stack] = [*stacks, *([against] if against else [])]
        seconds = 0.2 if args.quick else 1.0
        ceilings = measure_ceilings(device, seconds=seconds) if device.type == "cuda" else None
        for name in args.model.split(","):
            checkpoint = resolve(name)
            model = checkpoint.spec.short_name
            for number, (crops, frames) in enumerate(work):
                beside = [peer for peer in BESIDE if number == 0 or peer == baseline]
                yield from model_rows(
                    checkpoint, model, device, [*subjects, *beside],
                    crops=crops, frames=frames, ceilings=ceilings, seconds=seconds, baseline=baseline,
                )  # fmt: skip
            for stack in stacks:
                yield from stack_profile_rows(checkpoint, model, device, stack, crops=2)
            if args.ready:
                yield from ready_rows(name, device, own, crops=2)

    def run() -> None:
        device = resolve_device(args.device)
        finish(
            args.out, round_name=f"{folder.parent.name}/{folder.name}", title=title, kind="change",
            parent=patch_of(folder).PARENT, device=device, rows=measured(device),
            gates=[record for path in args.gate for record in gate_records(path)],
        )  # fmt: skip

    return exit_code(folder.name.partition("_")[0], run)


def gate_records(path: Path) -> list[GateRecord]:
    """The verdicts of a file of `fasteomt gate --json`, without gates that were not run.

    Raises:
        InputError: no such file, or it holds something else.
    """
    require_file(path)
    try:
        verdicts = [Verdict.from_dict(raw) for raw in json.loads(path.read_text("utf-8"))["verdicts"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, InputError) as error:
        raise InputError(
            f"{path}: not the verdicts of a stack: {one_line(error)}: make them by  fasteomt gate --json"
        ) from None
    return [GateRecord(**verdict.record()) for verdict in verdicts if verdict.passed is not None]
