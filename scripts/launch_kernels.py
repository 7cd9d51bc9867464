"""Launch every kernel of the 16-bit stacks once, at few and odd numbers of tokens and crops, for a checker.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 python scripts/launch_kernels.py

Without torch's cache every tensor is an allocation of its own, so that a checker sees accesses beyond it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from fasteomt.checkpoint import random_checkpoint
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.engine import Engine, resolve_device
from fasteomt.errors import UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import attention, linear
from fasteomt.stacks import get_stack

# 1024 patches, then 225; 5 prefix tokens; and queries in the second block, which see all: 1029 and 1129, 230
# and 250 tokens.
GEOMETRIES = {
    "1029 and 1129 tokens": {"num_queries": 100, "image_size": (512, 512)},
    "230 and 250 tokens": {"num_queries": 20, "image_size": (240, 240)},
}
CROPS = (1, 3)


def main() -> int:
    p = OneLineParser(prog="launch_kernels", description="Launch every kernel once.")
    p.add_argument("--stack", default="bf16,fp16", help="with commas")
    p.add_argument("--device", default="auto")
    args = p.parse_args()

    def work() -> None:
        device = resolve_device(args.device)
        for name in args.stack.split(","):
            stack = get_stack(name)
            others = [
                (f"{op} {each}", replace(stack.on_gpu, **{op: each}))
                for op, module in (("linear", linear), ("attention", attention))
                for each in module.IMPLEMENTATIONS
                if each != "reference"
            ]
            for label, implementations in others:
                for geometry, changes in GEOMETRIES.items():
                    spec = ModelSpec.from_name("vits16", depth=2, num_joint_blocks=1, **changes)  # type: ignore[arg-type]
                    weights = random_checkpoint(spec).weights
                    try:
                        chosen = replace(stack, on_gpu=implementations, graph=False)
                        engine = Engine(spec, weights, chosen, device)
                    except UnsupportedError as error:
                        print(f"{name}, {label}: {error}", flush=True)
                        break
                    for crops in CROPS:
                        masks, _ = engine.logits(torch.randn(crops, 3, *spec.image_size, device=device))
                        if not masks.isfinite().all():
                            raise RuntimeError(f"{name}, {label}, {geometry}, {crops} crops: not finite")
                    print(f"{name}, {label}, {geometry}: done", flush=True)

    return exit_code("launch_kernels", work)


if __name__ == "__main__":
    sys.exit(main())
