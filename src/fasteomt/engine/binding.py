"""From a plan to a program: which op a group is, which weights it takes, and which buffers it joins.

In names of shapes: B crops, P patches of a crop, C channels, Q queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fasteomt.engine.packing import Packing
from fasteomt.engine.program import Buffer, Launch, Places, Program
from fasteomt.engine.tuning import Table, tuned_config
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.reference import rope_tables
from fasteomt.model.spec import LAYER_NORM_EPS, ModelSpec
from fasteomt.ops import (
    add_norm,
    attention,
    depthwise_masks,
    depthwise_norm,
    implementation,
    linear,
    mask_logits,
    patches,
    rope,
    silu_mul,
)
from fasteomt.ops.grid import Grid
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target
from fasteomt.plan import Group, Plan, sites

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# The epilogue of a product that the group's last site asks for.
_EPILOGUES = {"gelu": "gelu", "rope": "rope", "scale+add": "residual", "layer_norm": "norm"}
# The mask head's first two products end in a GELU that is no site.
_WITH_GELU = ("head.mask.0", "head.mask.2")


# Given a group, the op that computes it, its problem, and how its rows lie where it is in a block: the
# implementation's module, and what its `run` is told besides.
Find = Callable[[Group, str, object, Rows | None], tuple[ModuleType, dict[str, Any]]]


def bind(
    spec: ModelSpec, plan: Plan, packing: Packing, device: torch.device, crops: int, size: int, table: Table
) -> Program:
    """The program of a plan for `crops` crops of `size` x `size` pixels, in configurations of `table`.

    Raises:
        InputError: groups that no op computes, formats that don't meet, or crops without a whole patch.
        UnsupportedError: an implementation that this device, or these shapes, don't have.
    """
    if size < spec.patch_size:
        raise InputError(f"crops of {size} pixels: {spec.name} has patches of {spec.patch_size}")
    target = Target.of(device)

    def find(group: Group, op: str, problem: object, _: Rows | None) -> tuple[ModuleType, dict[str, Any]]:
        module = implementation(op, group.implementation, target, problem)
        config = tuned_config(table, target, op, group.implementation, problem)
        return module, {} if config is None else {"config": config}

    return Binder(spec, plan, packing, device, crops, size, find).bind()


class Binder:
    """Goes through a plan's groups and asks `find` who computes each."""

    def __init__(
        self, spec: ModelSpec, plan: Plan, packing: Packing, device: torch.device, crops: int, size: int,
        find: Find,
    ) -> None:  # fmt: skip
        self.spec, self.plan, self.packing, self.device = spec, plan, packing, device
        self.find = find
        self.crops, self.side = crops, size // spec.patch_size
        self.sites = {site.name: site for site in sites(spec)}
        self.rows = Rows(crops, self.side**2, spec.num_prefix_tokens)
        self.places = self._places()
        self.memory: dict[object, Tensor] = {}
        self.launches: list[Launch] = []
        # Of the group that is being bound:
        self.group: Group
        self.out_dtype: torch.dtype  # what the one after it takes
        self.dtype: torch.dtype
        # What it may read: activations, the residual stream, and what waits to be added to that.
        self.current: Buffer
        self.stream: Buffer
        self.delta: Buffer | None = None
        self.queries: Buffer
        self.embedding: Buffer
        self.rotation: Rotation

    def bind(self) -> Program:
        for group in self.plan.groups:
            if group.recipe not in DTYPES:
                where = group.sites[0]
                raise UnsupportedError(f"plan: site '{where}': no kernels in format '{group.recipe}'")
        for group, following in zip(self.plan.groups, (*self.plan.groups[1:], None), strict=True):
            self.group, self.dtype = group, DTYPES[group.recipe]
            self.out_dtype = DTYPES[following.recipe] if following else self.dtype
            self._bind_group()
        bound = [() if launch.side else launch.group.sites for launch in self.launches]
        fork = 1 + next(i for i, names in enumerate(bound) if names[-1:] == ("norm",))
        join = next(i for i, names in enumerate(bound) if "head.einsum" in names)
        # Launches may hold this binder: it mustn't hold them, or a program's memory would wait for the
        # garbage collector.
        launches, self.launches = tuple(self.launches), []
        classes = self.places.classes[..., : len(self.spec.class_ids) + 1]
        return Program(self.places.crops, self.places.masks, classes, launches, fork, join)

    def _places(self) -> Places:
        spec, crops, queries = self.spec, self.crops, self.spec.num_queries
        seen = self.side * spec.patch_size  # pixels past the last whole patch are not
        given = DTYPES[self.plan.groups[-1].recipe]  # what comes after the network takes this
        size = self.side << spec.num_upscale_blocks
        head = next(group for group in self.plan.groups if group.sites == ("head.class",))
        padded = self.packing.outputs([self.sites["head.class"]])
        return Places(
            torch.zeros(crops, 3, seen, seen, dtype=torch.float32, device=self.device),
            torch.empty(crops, queries, size, size, dtype=given, device=self.device),
            torch.empty(crops, queries, padded, dtype=DTYPES[head.recipe], device=self.device),
        )

    def _bind_group(self) -> None:
        names = self.group.sites
        ops = tuple(self.sites[name].op for name in names)
        if names in (("frame.prep",), ("frame.post",)):
            return  # before and after the program
        if names == ("rope",):
            periods = self.packing.vector("backbone.rope_embed.periods")
            self.rotation = Rotation.of(rope_tables(periods, self.side, self.side))
        elif names == ("head.einsum",):
            self._mask_logits()
        elif ops[0] in ("gemm", "conv"):
            self._linear()
        elif ops[-1] == "layer_norm" and ops[0] != "depthwise_conv":
            self._norm()
        else:
            binders: dict[tuple[str, ...], Callable[[], None]] = {
                ("unfold",): self._patches,
                ("rope",): self._rope,
                ("attention",): self._attention,
                ("rope", "attention"): self._attention,
                ("silu*mul",): self._silu_mul,
                ("depthwise_conv", "layer_norm"): self._depthwise_norm,
                ("depthwise_conv", "layer_norm", "gemm"): self._depthwise_masks,
            }
            if ops not in binders:
                raise self._no_op(ops)
            binders[ops]()

    def _no_op(self, ops: tuple[str, ...]) -> InputError:
        return InputError(f"plan: site '{self.group.sites[0]}': no op computes {' + '.join(ops)} at once")

    def _find(self, op: str, problem: object) -> ModuleType:
        return self.find(self.group, op, problem, None)[0]

    def _buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Buffer:
        """A buffer, by default of the group's format. Blocks share theirs: what one wrote, the next has
        read."""
        dtype = dtype or self.dtype
        key = (name.rpartition(".")[2] if name.startswith("block.") else name, shape, dtype)
        tensor = self._room(key, lambda: torch.empty(shape, dtype=dtype, device=self.device))
        return Buffer(name, shape, dtype, tensor)

    def _room(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """The program's memory for all launches of this key, which follow one another."""
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]

    def _launch(self, run: Callable[[], object], *, side: bool = False) -> None:
        self.launches.append(Launch(self.group, run, side))

    # Each of the following binds one kind of group.

    def _patches(self) -> None:
        crops, patch = self.places.crops, self.spec.patch_size
        size = crops.shape[-1]
        module = self._find("patches", patches.Problem(self.crops, size, patch, self.dtype))
        out = self._buffer("patches", self.crops * self.side**2, 3 * patch**2)
        self._launch(lambda: module.run(crops, out.tensor, patch))
        self.current = out

    def _linear(self) -> None:
        parts = [self.sites[name] for name in self.group.sites]
        ops = tuple(part.op for part in parts)
        epilogue = _EPILOGUES.get(ops[-1], "")
        follow = {"": 0, "norm": 2}.get(epilogue, 1)  # sites of the epilogue
        products = parts[: len(parts) - follow]
        joined = [part.name.rpartition(".")[2] for part in products]
        # Of several products, only SwiGLU's two read the same.
        if (
            any(part.op not in ("gemm", "conv") for part in products)
            or joined not in (joined[:1], ["w1", "w2"])
            or (epilogue == "norm" and (ops[-2] != "scale+add" or not parts[-1].name.startswith("block.")))
        ):
            raise self._no_op(ops)
        name = products[0].name
        if name in _WITH_GELU:
            epilogue = "gelu"
        side = name.startswith("head.mask") or name == "head.class"
        source = self.current
        if side:
            source = self.queries if name in ("head.mask.2", "head.mask.4") else self.embedding
        x = source.read(self.group, self.dtype)
        (m, k), n = source.shape, self.packing.outputs(products)
        head_dim = self.spec.embed_dim // self.spec.num_heads if epilogue == "rope" else 0
        # Attention may have a format of its own.
        gives = self.out_dtype if name.endswith(".qkv") else self.dtype
        problem = linear.Problem(m, n, k, self.dtype, epilogue, head_dim, gives)
        rows = self.rows if name.startswith("block.") else None
        module, tuned = self.find(self.group, "linear", problem, rows)
        dense = self.packing.dense(products, self.dtype, module.BIAS_DTYPE)
        options: dict[str, Any] = {"epilogue": epilogue, "rows": rows, **tuned}
        adds = epilogue in ("residual", "norm")
        if epilogue == "rope":
            options |= {"rotation": self.rotation, "rotated": 2 * self.spec.embed_dim}
        if adds:
            options["scale"] = self.packing.layer_scale(parts[len(products)])
            out = self.stream
        elif name == "head.class":
            logits = self.places.classes.flatten(0, 1)
            out = Buffer(name, tuple(logits.shape), logits.dtype, logits)
        else:
            out = self._buffer(name, m, n, dtype=gives)
        if epilogue == "norm":
            self.current = self._buffer(parts[-1].name, m, n)
            given = *self.packing.norm(parts[-1]), LAYER_NORM_EPS, self._parts(problem, tuned)
            options["norm"] = linear.Normed(self.current.tensor, *given)
        self._launch(
            lambda: module.run(x(), dense.weight, dense.bias, out.tensor, **options), side=side
        )  # fmt: skip
        if name == "head.class" or adds:
            pass
        elif side:
            self.queries = out
        elif name.endswith((".proj", ".fc2", ".w3")):
            self.delta = out
        elif name.startswith("head.up"):
            self.current = out.view(4 * m, n // 4)
        else:
            self.current = out

    def _parts(self, problem: linear.Problem, tuned: dict[str, Any]) -> Tensor:
        """Room that products have for their norms: one for all that are alike."""
        key = ("parts", problem, *tuned.values())
        return self._room(key, lambda: linear.parts_for(problem.m, problem.n, self.device))

    def _rope(self) -> None:
        qkv, rows, rotation = self.current, self.rows, self.rotation
        head_dim = self.spec.embed_dim // self.spec.num_heads
        module = self._find("rope", rope.Problem(rows, qkv.shape[1], head_dim, self.dtype))
        x, turned = qkv.read(self.group, self.dtype), 2 * self.spec.embed_dim
        self._launch(lambda: module.run(x(), rotation, turned, rows))

    def _attention(self) -> None:
        heads, rows = self.spec.num_heads, self.rows
        rotation = self.rotation if len(self.group.sites) == 2 else None
        problem = attention.Problem(
            rows, heads, self.spec.embed_dim // heads, self.dtype, rope=rotation is not None,
            out_dtype=self.out_dtype,
        )  # fmt: skip
        module, tuned = self.find(self.group, "attention", problem, rows)
        if hasattr(module, "room_for"):
            room = self._room(("room", problem), lambda: module.room_for(problem, self.device))
            tuned = tuned | {"room": room}
        qkv = self.current.read(self.group, self.dtype)
        out = self._buffer(self.group.sites[-1], rows.total, self.spec.embed_dim, dtype=self.out_dtype)

        def run() -> None:
            out.tensor = module.run(qkv(), out.tensor, heads, rows, rotation, **tuned)

        self._launch(run)
        self.current = out

    def _norm(self) -> None:
        names = self.group.sites
        norm, ops = self.sites[names[-1]], [self.sites[name].op for name in names[:-1]]
        if ops not in ([], ["scale+add"], ["concat"], ["scale+add", "concat"]):
            raise self._no_op((*ops, norm.op))
        if ("scale+add" in ops) != (self.delta is not None):
            raise InputError(f"plan: '{names[0]}': a block's output must be added to the stream once")
        first, final, spec = norm.name == "block.0.norm1", norm.name == "norm", self.spec
        stream = self.current if first else self.stream
        before = self.rows
        if "concat" in ops:
            self.rows = Rows(self.crops, before.patches, before.extras + spec.num_queries)
        source, initial = None, None
        if first:
            initial = torch.cat([self.packing.prefix(), self.packing.queries()][: 1 + ("concat" in ops)])
            source = self._source(lambda crop: crop * before.patches, lambda crop, extra: -1 - extra)
        elif "concat" in ops:
            initial = self.packing.queries()
            source = self._source(
                before.patch_start,
                lambda crop, extra: (
                    before.extra_start(crop) + extra if extra < before.extras else before.extras - 1 - extra
                ),
            )
        elif final:
            source = self._outputs()
        count = self.rows.total if source is None else len(source)
        problem = add_norm.Problem(
            count, spec.embed_dim, self.dtype,
            has_delta=self.delta is not None, has_source=source is not None,
        )  # fmt: skip
        module = self._find("add_norm", problem)
        out = self._buffer(norm.name, count, spec.embed_dim)
        scale = self.packing.layer_scale(self.sites[names[0]]) if self.delta else None
        moved = source is not None and not final
        new = self._stream_buffer(count) if moved else stream
        writes = moved or (self.delta is not None and not final)
        delta, (weight, bias) = self.delta, self.packing.norm(norm)
        self._launch(
            lambda: module.run(
                stream.tensor, delta and delta.tensor, weight, bias, LAYER_NORM_EPS, out.tensor,
                scale=scale, x_out=new.tensor if writes else None, source=source, initial=initial,
            )
        )  # fmt: skip
        self.stream, self.delta, self.current = new, None, out
        if final:
            split = self.crops * spec.num_queries
            self.embedding, self.current = out.part(0, split), out.part(split, count)

    def _stream_buffer(self, rows: int) -> Buffer:
        made = torch.empty(rows, self.spec.embed_dim, dtype=torch.float32, device=self.device)
        return Buffer("residual stream", tuple(made.shape), made.dtype, made)

    def _source(self, of_patches: Callable[[int], int], of_extra: Callable[[int, int], int]) -> Tensor:
        """For each of the rows of all tokens, where it comes from: see `ops.add_norm`.

        Args:
            of_patches: by crop, the row of its first patch. of_extra: by crop and extra token, its row.
        """
        rows, out = self.rows, torch.empty(self.rows.total, dtype=torch.int32, device="cpu")
        for crop in range(rows.crops):
            start, extras = rows.patch_start(crop), rows.extra_start(crop)
            out[start : start + rows.patches] = of_patches(crop) + torch.arange(rows.patches, device="cpu")
            sources = [of_extra(crop, i) for i in range(rows.extras)]
            out[extras : extras + rows.extras] = torch.tensor(sources, device="cpu")
        return out.to(self.device)

    def _outputs(self) -> Tensor:
        """The rows that the head reads: all queries, then all patches."""
        rows, crops = self.rows, range(self.crops)
        ends = [rows.extra_start(crop) + rows.extras for crop in crops]
        spans = [
            *((end - self.spec.num_queries, end) for end in ends),
            *((rows.patch_start(crop), rows.patch_start(crop) + rows.patches) for crop in crops),
        ]
        found = list(itertools.chain.from_iterable(range(*span) for span in spans))
        return torch.tensor(found, dtype=torch.int32, device=self.device)

    def _silu_mul(self) -> None:
        x = self.current.read(self.group, self.dtype)
        m, hidden = self.current.shape[0], self.current.shape[1] // 2
        module = self._find("silu_mul", silu_mul.Problem(m, hidden, self.dtype))
        out = self._buffer(self.group.sites[0], m, hidden)
        self._launch(lambda: module.run(x(), out.tensor))
        self.current = out

    def _depthwise_norm(self) -> None:
        depthwise, norm = (self.sites[name] for name in self.group.sites)
        level = int(depthwise.name.removeprefix("head.up").partition(".")[0])
        grid = Grid(self.crops, self.side, level)
        module = self._find("depthwise_norm", depthwise_norm.Problem(grid, self.spec.embed_dim, self.dtype))
        x, taps = self.current.read(self.group, self.dtype), self.packing.depthwise(depthwise)
        weight, bias = self.packing.norm(norm)
        out = self._buffer(depthwise.name, *self.current.shape)
        self._launch(lambda: module.run(x(), taps, weight, bias, LAYER_NORM_EPS, out.tensor, grid))
        self.current = out

    def _depthwise_masks(self) -> None:
        depthwise, norm, product = (self.sites[name] for name in self.group.sites)
        if product.name != "head.einsum":
            raise self._no_op((depthwise.op, norm.op, product.op))
        spec, masks = self.spec, self.places.masks
        grid, count = Grid(self.crops, self.side, spec.num_upscale_blocks), spec.num_queries
        problem = depthwise_masks.Problem(grid, count, spec.embed_dim, self.dtype, masks.dtype)
        module, tuned = self.find(self.group, "depthwise_masks", problem, None)
        queries, features = (one.read(self.group, self.dtype) for one in (self.queries, self.current))
        folded = self._buffer(product.name, self.crops, count + 1, spec.embed_dim)
        sums = torch.empty(2, self.crops * count, dtype=torch.float32, device=self.device)
        weight, bias = self.packing.norm(norm)
        self._launch(lambda: module.fold(queries(), weight, bias, folded.tensor, sums), side=True)
        taps, eps = depthwise_masks.in_range(self.packing.depthwise(depthwise), LAYER_NORM_EPS)
        self._launch(lambda: module.run(features(), taps, eps, folded.tensor, sums, masks, grid, **tuned))

    def _mask_logits(self) -> None:
        spec, masks = self.spec, self.places.masks
        grid = Grid(self.crops, self.side, spec.num_upscale_blocks)
        problem = mask_logits.Problem(grid, spec.num_queries, spec.embed_dim, self.dtype, masks.dtype)
        module = self._find("mask_logits", problem)
        queries, features = (one.read(self.group, self.dtype) for one in (self.queries, self.current))
        self._launch(lambda: module.run(queries(), features(), masks, grid))
