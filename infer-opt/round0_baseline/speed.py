"""Round 0: what unmodified LightlyTrain and PyTorch's own tools make of a frame, and where its time goes.

python infer-opt/round0_baseline/speed.py --model vitl16,vitb16 --out infer-opt/round0_baseline/results.json
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from fasteomt.bench.ceilings import measure_ceilings
from fasteomt.bench.profile_rows import profile_rows
from fasteomt.bench.results import Measured
from fasteomt.bench.rows import model_rows, video_rows
from fasteomt.checkpoint import resolve
from fasteomt.cli.round import finish, log_progress, options
from fasteomt.cli.script import exit_code
from fasteomt.data.clip import write_clip
from fasteomt.engine import resolve_device
from fasteomt.peers.model import PEERS

ROUND = "infer-opt/round0_baseline"
BASELINE = "compile_reduce_overhead"


def main() -> int:
    p = options("round0", "The baseline of inference.", "vitl16,vitb16")
    p.add_argument("--frames", type=int, default=1008, help="of the looped clip, in three rounds")
    p.add_argument("--tune", action="store_true", help="compile_max_autotune too, which tunes for minutes")
    args = p.parse_args()
    log_progress()

    def measured(device: torch.device) -> Iterator[Measured]:
        seconds, frames = (0.2, 20) if args.quick else (1.0, args.frames)
        on_gpu = device.type == "cuda"
        ceilings = measure_ceilings(device, seconds=seconds) if on_gpu else None
        names = [name for name in PEERS if args.tune or name != "compile_max_autotune"]
        with tempfile.TemporaryDirectory() as folder:
            clip = Path(folder) / "clip.mp4"
            write_clip(clip, frames=20 if args.quick else 42)
            for name in args.model.split(","):
                checkpoint = resolve(name)
                model = checkpoint.spec.short_name
                common = {"baseline": BASELINE if on_gpu else None, "seconds": seconds}
                yield from model_rows(
                    checkpoint, model, device, [*names, "fp32", "bf16"], crops=2, ceilings=ceilings, **common
                )
                for mode in ("upstream_script", "upstream_predict"):
                    yield from video_rows(
                        checkpoint, model, device, mode, clip, frames=-(-frames // 3), rounds=3
                    )
                    yield from profile_rows(checkpoint, model, device, mode, clip)

    def work() -> None:
        device = resolve_device(args.device)
        finish(
            args.out, round_name=ROUND, title="LightlyTrain and PyTorch's own tools", kind="study",
            parent=None, device=device, rows=measured(device),
        )  # fmt: skip

    return exit_code("round0", work)


if __name__ == "__main__":
    sys.exit(main())
