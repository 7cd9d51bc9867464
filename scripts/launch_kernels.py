"""Launch every kernel of the 16-bit stacks once, at few and odd numbers of tokens and crops, for a checker.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 python scripts/launch_kernels.py

Without torch's cache every tensor is an allocation of its own, so that a checker sees accesses beyond it.
"""

from __future__ import annotations

import sys

import torch

from fasteomt.checkpoint import random_checkpoint
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.engine import resolve_device
from fasteomt.engine.asked import NOMINAL_CROPS, asked
from fasteomt.engine.kernels import Kernels
from fasteomt.engine.tuning import Entry, Table, problem_key
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import attention, depthwise_masks, linear
from fasteomt.ops.target import Target
from fasteomt.stacks import Stack, get_stack

# 1024 patches, then 225; 5 prefix tokens; and queries in the second block, which see all: 1029 and 1129, 230
# and 250 tokens.
GEOMETRIES = {
    "1029 and 1129 tokens": {"num_queries": 100, "image_size": (512, 512)},
    "230 and 250 tokens": {"num_queries": 20, "image_size": (240, 240)},
}
CROPS = (1, 3)
OPS = {"linear": linear, "attention": attention, "depthwise_masks": depthwise_masks}


def main() -> int:
    p = OneLineParser(prog="launch_kernels", description="Launch every kernel once.")
    p.add_argument("--stack", default="bf16,fp16", help="with commas")
    p.add_argument("--device", default="auto")
    args = p.parse_args()

    def work() -> None:
        device = resolve_device(args.device)
        for name in args.stack.split(","):
            stack = get_stack(name)
            for op, module in OPS.items():
                for each in module.IMPLEMENTATIONS:
                    if each != "reference":
                        launch(stack, op, each, device)

    return exit_code("launch_kernels", work)


def launch(stack: Stack, op: str, implementation: str, device: torch.device) -> None:
    """A small model in which `implementation` does what it can of `op`, and others the rest."""
    target = Target.of(device)
    for geometry, changes in GEOMETRIES.items():
        label = f"{stack.name}, {op} {implementation}, {geometry}"
        spec = ModelSpec.from_name("vits16", depth=2, num_joint_blocks=1, **changes)
        wanted = [
            Entry(op, problem_key(one.problem), implementation, None, 1.0)
            for one in asked(spec, stack.plan(spec, target, Table()), NOMINAL_CROPS)
            if one.op == op
        ]
        plan = stack.plan(spec, target, Table(entries=tuple(wanted)))
        groups = sum(group.implementation == implementation for group in plan.groups)
        kernels = Kernels(spec, random_checkpoint(spec).weights, plan, device, graph=False)
        for crops in CROPS:
            masks, _ = kernels.logits(torch.randn(crops, 3, *spec.image_size, device=device))
            if not masks.isfinite().all():
                raise RuntimeError(f"{label}, {crops} crops: not finite")
        print(f"{label}: done, {groups} groups by {implementation}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
