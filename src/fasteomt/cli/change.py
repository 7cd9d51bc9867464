"""What the speed.py of every round of kind 'change' does: its stack beside its parent's and the peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from fasteomt.bench.ceilings import measure_ceilings
from fasteomt.bench.ladder import patch_of, stack_of
from fasteomt.bench.profile_rows import stack_profile_rows
from fasteomt.bench.results import Measured
from fasteomt.bench.rows import model_rows
from fasteomt.checkpoint import resolve
from fasteomt.cli.round import finish, log_progress, options
from fasteomt.cli.script import exit_code
from fasteomt.engine import resolve_device

PEERS = ("compile_reduce_overhead", "graph_bf16", "eager_bf16")


def measure_change(script: str, title: str) -> int:
    """Measure the round that `script` is the speed.py of: `model_ms` of two crops, and a profile.

    Ratios are to the parent's stack; round 1's are to `eager_bf16`, since its parent is plain fp32.
    """
    folder = Path(script).resolve().parent
    p = options(folder.name.partition("_")[0], title, "vitl16,vitb16")
    args = p.parse_args()
    log_progress()

    def measured(device: torch.device) -> Iterator[Measured]:
        own, parent = stack_of(folder), patch_of(folder).PARENT
        stacks = [own] if parent is None else [stack_of(folder.parent / parent), own]
        seconds = 0.2 if args.quick else 1.0
        ceilings = measure_ceilings(device, seconds=seconds) if device.type == "cuda" else None
        for name in args.model.split(","):
            checkpoint = resolve(name)
            model = checkpoint.spec.short_name
            yield from model_rows(
                checkpoint, model, device, [*stacks, *PEERS], crops=2, ceilings=ceilings, seconds=seconds,
                baseline="eager_bf16" if parent is None else stacks[0].name,
            )  # fmt: skip
            for stack in stacks:
                yield from stack_profile_rows(checkpoint, model, device, stack, crops=2)

    def work() -> None:
        device = resolve_device(args.device)
        finish(
            args.out, round_name=f"{folder.parent.name}/{folder.name}", title=title, kind="change",
            parent=patch_of(folder).PARENT, device=device, rows=measured(device),
        )  # fmt: skip

    return exit_code(folder.name.partition("_")[0], work)
