"""Which stack `--stack auto` means: the fastest whose gates have passed for this model on this machine."""

from __future__ import annotations

import shlex

import torch

from fasteomt.capabilities import hardware_name
from fasteomt.checkpoint import Checkpoint
from fasteomt.gates.store import held_verdicts
from fasteomt.gates.verdict import GATES
from fasteomt.ops.target import Target
from fasteomt.stacks import Stack, get_stack

# Fastest first.
CANDIDATES = ("fp16", "bf16")
UNVERIFIED = "bf16"


def choose_stack(checkpoint: Checkpoint, device: torch.device) -> tuple[Stack, str | None]:
    """The stack for a model on a device, and what the user should know about it, or None.

    A stack counts as verified when all inference gates have passed on one clip, for this checkpoint, the plan
    and the GPU's name, with today's sources and limits. On a CPU the choice is fp32: nothing is faster there.
    """
    if device.type != "cuda":
        return get_stack("fp32"), None
    gpu, target = hardware_name(device), Target.of(device)
    for name in CANDIDATES:
        stack = get_stack(name)
        found = held_verdicts(checkpoint.sha256, stack.plan(checkpoint.spec, target), gpu)
        for verdicts in found.values():
            if all(gate in verdicts and verdicts[gate].passed for gate in GATES):
                return stack, None
    note = (
        f"stack {UNVERIFIED} is unverified for {checkpoint.spec.short_name} on {gpu}: run  fasteomt gate "
        f"--model {shlex.quote(checkpoint.source)} --stack {CANDIDATES[0]}"
    )
    return get_stack(UNVERIFIED), note
