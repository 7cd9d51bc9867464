"""The stacks that ship: a plan for every model and target, under a readable name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fasteomt.engine.asked import resolved
from fasteomt.engine.tuning import Table, usable
from fasteomt.errors import InputError, brief
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import linear
from fasteomt.ops.target import Target
from fasteomt.plan import Group, Plan, plan_by_op


@dataclass(frozen=True)
class Implementations:
    """Which implementation of each op; by default what every machine can do with nothing but torch.

    'tuned': of `linear`, `attention` and `depthwise_masks`, whichever was measured to be fastest at a site's
    shapes on the GPU that the plan is for, and 'fused' where nothing was measured.
    depthwise_masks: "" for the last block's `depthwise_norm` and `mask_logits` one after the other.
    """

    patches: str = "reference"
    linear: str = "library"
    rope: str = "reference"
    attention: str = "library"
    add_norm: str = "reference"
    silu_mul: str = "reference"
    depthwise_norm: str = "reference"
    mask_logits: str = "library"
    depthwise_masks: str = ""


@dataclass(frozen=True)
class Stack:
    """How a model is computed.

    recipe: the number format of products and of what lies between them; the residual stream, the norms'
        statistics and softmax are fp32 in all.
    late: that of the joint blocks and what follows them, and of patches, if it is another one.
    attention: that of queries, keys and values on a GPU, if it is another one.
    on_gpu: by op; on a CPU all are the default ones, with nothing fused.
    rope: the op that turns queries and keys: 'rope' in a kernel of its own, or 'linear' or 'attention'.
    add: the op that adds to the residual stream: 'add_norm', or 'linear'.
    norm: the op that normalises it in blocks: 'add_norm', or 'linear', the product that adds to it, on a
        target whose products can.
    logits: the format in which mask logits leave the network.
    graph: replay one CUDA graph, rather than launch kernel by kernel.
    """

    name: str
    summary: str
    recipe: str
    late: str | None = None
    attention: str | None = None
    on_gpu: Implementations = Implementations()
    rope: str = "rope"
    add: str = "add_norm"
    norm: str = "add_norm"
    logits: str = "fp32"
    graph: bool = False

    def plan(self, spec: ModelSpec, target: Target, table: Table | None = None) -> Plan:
        """Every site of the model, in execution order, in groups that one implementation computes.

        Args:
            table: of measurements; None for what is known of the GPU here that is `target`, if there is one.
        """
        if self.recipe == "fp32":
            return plan_by_op(spec, "reference", lambda op: "fp32")
        groups = tuple(_Grouping(self, spec, target).groups())
        return resolved(spec, Plan(groups), target, table)


class _Grouping:
    def __init__(self, stack: Stack, spec: ModelSpec, target: Target) -> None:
        on_cpu = target.arch == "cpu"
        self.spec, self.recipe, self.logits = spec, stack.recipe, stack.logits
        self.late = stack.late or stack.recipe
        self.attention = None if on_cpu else stack.attention
        self.implementations = Implementations() if on_cpu else stack.on_gpu
        self.rope = "rope" if on_cpu else stack.rope
        self.add = "add_norm" if on_cpu else stack.add
        self.products_normalise = stack.norm == "linear" and _products_normalise(spec, target)

    def groups(self) -> list[Group]:
        spec = self.spec
        out = [
            Group(("frame.prep",), "reference", "fp32"),
            self._group("patches", "patches", recipe=self.late),
            self._group("linear", "patch_embed", recipe=self.late),
            Group(("rope",), "reference", "fp32"),
        ]
        waiting: list[str] = []  # sites that the next norm computes too
        for i in range(spec.depth):
            if i == spec.depth - spec.num_joint_blocks:
                waiting.append("queries")
                self.recipe = self.late
            waiting = self._block(out, f"block.{i}", waiting)
        self.recipe = self.late  # without joint blocks too
        out.append(self._group("add_norm", *waiting, "norm"))
        out += [self._group("linear", f"head.mask.{i}") for i in (0, 2, 4)]
        for j in range(1, spec.num_upscale_blocks + 1):
            out.append(self._group("linear", f"head.up{j}.conv", f"head.up{j}.gelu"))
            depthwise_norm = f"head.up{j}.depthwise", f"head.up{j}.norm"
            if j < spec.num_upscale_blocks:
                out.append(self._group("depthwise_norm", *depthwise_norm))
            elif self.implementations.depthwise_masks:
                out.append(self._group("depthwise_masks", *depthwise_norm, "head.einsum"))
            else:
                out += [
                    self._group("depthwise_norm", *depthwise_norm),
                    self._group("mask_logits", "head.einsum"),
                ]
        out.append(self._group("linear", "head.class"))
        return [*out, Group(("frame.post",), "reference", self.logits)]

    def _block(self, out: list[Group], block: str, waiting: list[str]) -> list[str]:
        """Append a block's groups; returns what it leaves to the next norm."""
        qkv, rope, attention = (f"{block}.{part}" for part in ("qkv", "rope", "attention"))
        # The first block's norm, and that of the first joint one, arrange tokens.
        self._norm(out, f"{block}.norm1", waiting, alone=block == "block.0" or bool(waiting))
        own = self.attention
        if self.rope == "linear":
            out += [self._group("linear", qkv, rope), self._group("attention", attention, recipe=own)]
        elif self.rope == "attention":
            out += [self._group("linear", qkv), self._group("attention", rope, attention, recipe=own)]
        else:
            out += [
                self._group("linear", qkv), self._group("rope", rope, recipe=own),
                self._group("attention", attention, recipe=own),
            ]  # fmt: skip
        waiting = self._to_stream(out, f"{block}.proj", f"{block}.add1")
        self._norm(out, f"{block}.norm2", waiting, alone=bool(waiting))
        if self.spec.ffn == "swiglu":
            out += [
                self._group("linear", f"{block}.w1", f"{block}.w2"),
                self._group("silu_mul", f"{block}.silu"),
            ]
            return self._to_stream(out, f"{block}.w3", f"{block}.add2")
        out.append(self._group("linear", f"{block}.fc1", f"{block}.gelu"))
        return self._to_stream(out, f"{block}.fc2", f"{block}.add2")

    def _norm(self, out: list[Group], norm: str, waiting: list[str], *, alone: bool) -> None:
        """A norm in a group of its own, or in that of the product before it."""
        if self.products_normalise and not alone:
            out[-1] = replace(out[-1], sites=(*out[-1].sites, norm), implementation="cuda")
        else:
            out.append(self._group("add_norm", *waiting, norm))

    def _to_stream(self, out: list[Group], product: str, add: str) -> list[str]:
        if self.add == "linear":
            out.append(self._group("linear", product, add))
            return []
        out.append(self._group("linear", product))
        return [add]

    def _group(self, op: str, *names: str, recipe: str | None = None) -> Group:
        return Group(names, getattr(self.implementations, op), recipe or self.recipe)


def _products_normalise(spec: ModelSpec, target: Target) -> bool:
    """Whether the products that add to the stream can give its norm too."""
    width = spec.embed_dim
    return usable(target, "linear", "cuda", linear.Problem(128, width, width, torch.bfloat16, "norm"))


# Rounds 1 to 5 of infer-opt: everything but the few small ops around the blocks.
_R5 = Implementations(add_norm="fused", linear="tuned", attention="tuned")
# Round 11: those too.
_R11 = replace(
    _R5,
    patches="fused",
    silu_mul="fused",
    depthwise_norm="fused",
    mask_logits="fused",
    depthwise_masks="tuned",
)
_BF16 = Stack(
    "bf16", "BF16; attention, joint blocks, patches and head FP16; fused kernels in one CUDA graph",
    "bf16", "fp16", "fp16", _R11, "linear", "linear", "linear", graph=True,
)  # fmt: skip

_TORCH = Stack("torch_bf16", "BF16 with torch's own kernels in one CUDA graph", "bf16", graph=True)

STACKS = {
    stack.name: stack
    for stack in (
        Stack("fp32", "plain fp32, the reference; TF32 is off", "fp32"),
        _BF16,
        replace(
            _BF16,
            name="fp16",
            summary="FP16, fused kernels in one CUDA graph",
            recipe="fp16",
            late=None,
            attention=None,
        ),
        replace(
            _BF16,
            name="r5_v1",
            summary="round 5: BF16, the blocks' kernels fused",
            on_gpu=_R5,
            late=None,
            attention=None,
            norm="add_norm",
        ),
        _TORCH,
        replace(
            _TORCH,
            name="torch_fp16",
            summary="FP16 with torch's own kernels in one CUDA graph",
            recipe="fp16",
        ),
    )
}

# Names from the ladder.
ALIASES = {"r2": "torch_bf16", "r11": "bf16", "r12": "fp16"}

# What 'A+B' makes of stack A.
VARIATIONS: dict[str, Callable[[Stack], Stack]] = {
    "head16": lambda stack: replace(stack, logits=stack.late or stack.recipe),
}


def get_stack(name: str) -> Stack:
    """A stack by its name, an alias, or 'A+B', stack A with variation B.

    Raises:
        InputError: an unknown name; lists what there is.
    """
    first, *variations = name.split("+") if isinstance(name, str) else [name]
    stack = STACKS.get(ALIASES.get(first, first)) if isinstance(first, str) else None
    if stack is None:
        known = ", ".join([*STACKS, *ALIASES])
        raise InputError(f"unknown stack {brief(name)}: choose one of {known}")
    for i, variation in enumerate(variations):
        if variation not in VARIATIONS or stack.recipe == "fp32" or variation in variations[:i]:
            raise InputError(
                f"unknown stack {brief(name)}: {stack.name} has "
                + ("no variations" if stack.recipe == "fp32" else f"variations {', '.join(VARIATIONS)}, once")
            )
        stack = replace(VARIATIONS[variation](stack), name=f"{stack.name}+{variation}")
    return stack
