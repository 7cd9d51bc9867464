"""The stacks that ship: a plan for every model, under a readable name."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fasteomt.errors import InputError, brief
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import Plan, plan_by_op

# What torch's autocast rounds to 16 bits on every device; all other ops keep fp32.
_AUTOCAST_OPS = frozenset({"gemm", "conv", "depthwise_conv", "attention"})


@dataclass(frozen=True)
class Stack:
    """`dtype` is the 16-bit type that autocast computes in, or None for plain fp32."""

    name: str
    dtype: torch.dtype | None
    summary: str

    def plan(self, spec: ModelSpec) -> Plan:
        if self.dtype is None:
            return plan_by_op(spec, "reference", lambda op: "fp32")
        return plan_by_op(spec, "torch", lambda op: self.name if op in _AUTOCAST_OPS else "fp32")


STACKS = {
    stack.name: stack
    for stack in (
        Stack("fp32", None, "plain fp32, the reference; TF32 is off"),
        Stack("bf16", torch.bfloat16, "torch autocast to bfloat16 over fp32 weights"),
        Stack("fp16", torch.float16, "torch autocast to float16 over fp32 weights"),
    )
}


def get_stack(name: str) -> Stack:
    """Raises InputError, listing what there is, for an unknown name."""
    try:
        return STACKS[name]
    except (KeyError, TypeError):
        raise InputError(f"unknown stack {brief(name)}: choose one of {', '.join(STACKS)}") from None
