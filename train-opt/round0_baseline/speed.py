"""Round 0: LightlyTrain's training step as it is, in the three precisions that it can run in.

python train-opt/round0_baseline/speed.py --model vitl16,vitb16 --out train-opt/round0_baseline/results.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from fasteomt.bench.profile_rows import training_profile_rows
from fasteomt.bench.results import Measured
from fasteomt.bench.rows import training_rows
from fasteomt.checkpoint import resolve
from fasteomt.cli.round import finish, log_progress, options
from fasteomt.cli.script import exit_code
from fasteomt.engine import resolve_device
from fasteomt.peers.training import TRAININGS

ROUND = "train-opt/round0_baseline"
BATCH = {"vitl16": 7, "vitb16": 14}


def main() -> int:
    p = options("round0", "The baseline of training.", "vitl16,vitb16")
    p.add_argument("--batch-size", type=int, help="images; default 7 for vitl16, else 14")
    args = p.parse_args()
    log_progress()

    def measured(device: torch.device) -> Iterator[Measured]:
        for name in args.model.split(","):
            checkpoint = resolve(name)
            model = checkpoint.spec.short_name
            batch = args.batch_size or BATCH.get(model, 14)
            yield from training_rows(
                checkpoint, model, device, list(TRAININGS), batch=batch, baseline="R0_fp32",
                seconds=0.2 if args.quick else 5.0,
            )  # fmt: skip
            for name in TRAININGS:
                yield from training_profile_rows(checkpoint, model, device, name, batch=batch)

    def work() -> None:
        device = resolve_device(args.device)
        finish(
            args.out, round_name=ROUND, title="LightlyTrain's training step", kind="study", parent=None,
            device=device, rows=measured(device),
        )  # fmt: skip

    return exit_code("round0", work)


if __name__ == "__main__":
    sys.exit(main())
