"""Stacks at other amounts of work: one crop, and several frames in one replay, beside torch.compile.

cd infer-opt/round12_lowp_stack
python bench12.py --model vitl16 --out bench.json
"""

from __future__ import annotations

import shlex
import sys

from fasteomt.bench import environment
from fasteomt.bench.ceilings import measure_ceilings
from fasteomt.bench.results import Run
from fasteomt.bench.rows import model_rows
from fasteomt.checkpoint import resolve
from fasteomt.cli.round import log_progress, options, show
from fasteomt.cli.script import exit_code
from fasteomt.engine import resolve_device
from fasteomt.files import check_target, write_json

PEER = "compile_reduce_overhead"
WORK = ((1, 1), (2, 1), (2, 2), (2, 4))  # crops of a frame, frames a replay


def main() -> int:
    p = options("bench12", "Crops and frames a replay.", "vitl16,vitb16")
    p.add_argument("--variants", default="bf16,fp16", help="stacks, with commas")
    p.add_argument("--overwrite", action="store_true")
    p.set_defaults(out=None)
    args = p.parse_args()
    log_progress()

    def work() -> None:
        if args.out is not None:
            check_target(args.out, overwrite=args.overwrite)
        device = resolve_device(args.device)
        seconds, on_gpu = (0.2 if args.quick else 1.0), device.type == "cuda"
        ceilings = measure_ceilings(device, seconds=seconds) if on_gpu else None
        stacks = args.variants.split(",")
        rows = []
        for name in args.model.split(","):
            checkpoint = resolve(name)
            for crops, frames in WORK:
                rows += model_rows(
                    checkpoint, checkpoint.spec.short_name, device, [*stacks, PEER],
                    crops=crops, frames=frames, baseline=PEER if on_gpu else stacks[0],
                    ceilings=ceilings, seconds=seconds,
                )  # fmt: skip
        command = shlex.join(["python", "bench12.py", *sys.argv[1:]])
        run = Run.build(environment.current(device), command, rows, ())
        show(run)
        if args.out is not None:
            write_json(args.out, run.model_dump(mode="json"), overwrite=args.overwrite)

    return exit_code("bench12", work)


if __name__ == "__main__":
    sys.exit(main())
