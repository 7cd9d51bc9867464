"""A network made of kernels computes what the reference model computes: exactly where its format is fp32, and
within the format's error elsewhere; for every geometry, on the CPU's implementations."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine import Engine
from fasteomt.engine.kernels import MAX_PROGRAMS, Kernels
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.plan import Group, Plan
from fasteomt.stacks import STACKS, get_stack

CPU = torch.device("cpu")
SMALL = {
    "embed_dim": 64, "num_heads": 2, "ffn_hidden": 128, "depth": 3, "num_joint_blocks": 1, "num_queries": 8,
    "image_size": (64, 64),
}  # fmt: skip


def plan_of(spec: ModelSpec, recipe: str) -> Plan:
    plan = STACKS["torch_bf16"].plan(spec, target.CPU)
    return Plan(
        tuple(replace(g, recipe=recipe) if g.recipe == "bf16" else g for g in plan.groups)
    )  # fmt: skip


def both(spec: ModelSpec, crops: Tensor, recipe: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What the reference gives, and what kernels give."""
    weights = awake(random_checkpoint(spec).weights)
    model = Eomt(spec)
    model.load_state_dict(weights)
    kernels = Kernels(spec, weights, plan_of(spec, recipe), CPU, graph=True)
    with torch.inference_mode():
        return model(crops), kernels.logits(crops)


def awake(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random weights with nothing left at zero or one, so that each of them matters."""
    generator = torch.Generator().manual_seed(1)
    out = {}
    for name, weight in weights.items():
        noise = 0.3 * torch.randn(weight.shape, generator=generator)
        keep = name.endswith(("periods", "bias_mask"))
        out[name] = (
            weight if keep else weight + (noise if weight.dim() < 2 or "token" in name else 0.1 * noise)
        )
    return out


def close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], error: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other).norm() < error * other.norm()


GEOMETRIES = {
    "two crops": ("vitt16", 2, {}),
    "one crop": ("vitt16", 1, {}),
    "three crops": ("vitt16", 3, {}),
    "five crops": ("vitt16", 5, {}),
    "patch 32": ("vitt32", 2, {}),
    "SwiGLU": ("vits16plus", 2, {"num_heads": 4}),
    "no bias in qkv": ("vitt16", 2, {"qkv_bias": False}),
    "all blocks joint": ("vitt16", 2, {"num_joint_blocks": 3}),
    "an odd number of queries": ("vitt16", 2, {"num_queries": 11}),
    "300 classes": (
        "vitt16",
        2,
        {"class_ids": tuple(range(300)), "class_names": tuple(map(str, range(300)))},
    ),
    "three upscalings": ("vitt16", 2, {"num_upscale_blocks": 3}),
    "no registers": ("vitt16", 2, {"num_register_tokens": 0}),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_in_fp32_it_is_the_reference(name: str) -> None:
    model, count, changes = GEOMETRIES[name]
    spec = ModelSpec.from_name(model, **(SMALL | changes))
    expected, found = both(spec, torch.randn(count, 3, 64, 64), "fp32")
    close(found, expected, 1e-5)


@pytest.mark.parametrize(("recipe", "error"), [("bf16", 3e-2), ("fp16", 4e-3)])
def test_in_16_bits_it_is_near(recipe: str, error: float) -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    expected, found = both(spec, torch.randn(2, 3, 64, 64), recipe)
    assert found[0].dtype == torch.float32
    close(found, expected, error)


def test_mask_logits_leave_in_the_format_that_the_last_group_takes() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    plan = get_stack("fp16+head16").plan(spec, target.CPU)
    kernels = Kernels(spec, random_checkpoint(spec).weights, plan, CPU, graph=True)
    masks, classes = kernels.network(torch.randn(2, 3, 64, 64))
    assert masks.dtype == classes.dtype == torch.float16


def test_results_of_an_engine_are_the_callers() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    engine = Engine(spec, random_checkpoint(spec).weights, get_stack("fp16"), CPU)
    first = engine.logits(torch.randn(2, 3, 64, 64))
    kept = [one.clone() for one in first]
    engine.logits(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(one, other) for one, other in zip(first, kept, strict=True))


def test_crops_of_another_size() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    expected, found = both(spec, torch.randn(2, 3, 96, 96), "fp32")
    close(found, expected, 1e-5)


def test_programs_are_kept_and_bounded() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    kernels = Kernels(spec, random_checkpoint(spec).weights, plan_of(spec, "fp32"), CPU, graph=True)
    first = kernels.program(1, 64)
    assert kernels.program(1, 64) is first
    for count in range(2, MAX_PROGRAMS + 2):
        kernels.program(count, 64)
    assert kernels.program(1, 64) is not first
    assert kernels._packing._packed  # weights are packed once for all of them
    one, two = (kernels.program(count, 64) for count in (MAX_PROGRAMS, MAX_PROGRAMS + 1))
    assert len(one.launches) == len(two.launches)


def test_a_programs_memory_is_given_back_at_once() -> None:
    """Not when the garbage collector comes by, which may be much later."""
    spec = ModelSpec.from_name("vitt16", **SMALL)
    engine = Engine(spec, random_checkpoint(spec).weights, STACKS["bf16"], CPU)
    gc.collect()
    gc.disable()
    try:
        buffer = weakref.ref(engine.program(1).masks)
        for count in range(2, MAX_PROGRAMS + 2):
            engine.program(count)
        assert buffer() is None
    finally:
        gc.enable()


def test_every_group_but_the_frames_own_is_launched_once_in_order() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    plan = plan_of(spec, "fp32")
    program = Kernels(spec, random_checkpoint(spec).weights, plan, CPU, graph=True).program(2, 64)
    launched = [launch.group for launch in program.launches]
    before = {("frame.prep",), ("rope",), ("frame.post",)}
    assert launched == [group for group in plan.groups if group.sites not in before]


def with_groups(plan: Plan, **changes: Group) -> Plan:
    return Plan(tuple(changes.get(group.sites[0].replace(".", "_"), group) for group in plan.groups))


def test_plans_that_cannot_be_bound_are_refused_by_site() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    weights, plan = random_checkpoint(spec).weights, plan_of(spec, "bf16")

    def bound(plan: Plan) -> None:
        Kernels(spec, weights, plan, CPU, graph=True).program(2, 64)

    fc1 = Group(("block.1.fc1", "block.1.gelu"), "library", "fp16")
    with pytest.raises(
        InputError, match=r"'block\.1\.fc1' takes float16, but 'block\.1\.norm2' gives bfloat16"
    ):
        bound(with_groups(plan, block_1_fc1=fc1))
    with pytest.raises(UnsupportedError, match=r"linear: no implementation 'magic': choose one of"):
        bound(with_groups(plan, block_1_fc1=replace(fc1, recipe="bf16", implementation="magic")))
    with pytest.raises(UnsupportedError, match=r"'block\.1\.fc1': no kernels in format 'mxfp8'"):
        bound(with_groups(plan, block_1_fc1=replace(fc1, recipe="mxfp8")))
    groups = {group.sites[0]: group for group in plan.groups}
    joined = Plan(
        tuple(
            replace(group, sites=("block.0.attention", "block.0.proj"))
            if group.sites[0] == "block.0.attention"
            else group
            for group in plan.groups
            if group.sites != ("block.0.proj",)
        )
    )
    assert groups["block.0.proj"] not in joined.groups
    with pytest.raises(InputError, match=r"'block\.0\.attention': no op computes attention \+ gemm at once"):
        bound(joined)


def test_crops_that_no_kernel_takes() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    kernels = Kernels(spec, random_checkpoint(spec).weights, plan_of(spec, "fp32"), CPU, graph=True)
    for crops, said in (
        (torch.zeros(1, 3, 64, 96), "square"),
        (torch.zeros(1, 3, 8, 8), "patches of 16"),
        (torch.zeros(2, 1, 64, 64), r"must be \(B, 3, S, S\)"),
        (torch.zeros(3, 64, 64), r"must be \(B, 3, S, S\)"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "floating"),
    ):
        with pytest.raises(InputError, match=said):
            kernels.logits(crops)


def test_pixels_past_the_last_whole_patch_are_not_seen() -> None:
    spec = ModelSpec.from_name("vitt16", **(SMALL | {"image_size": (70, 70)}))
    expected, found = both(spec, torch.randn(2, 3, 70, 70), "fp32")
    close(found, expected, 1e-5)


def test_no_crops_have_no_logits() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    engine = Engine(spec, random_checkpoint(spec).weights, get_stack("fp16"), CPU)
    masks, classes = engine.logits(torch.zeros(0, 3, 64, 64))
    assert masks.shape == (0, 8, 16, 16) and classes.shape == (0, 8, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"embed_dim": 60, "num_heads": 3},
        {"embed_dim": 36, "num_heads": 3},
        {"ffn_hidden": 50},
        {"patch_size": 14, "image_size": (70, 70)},
        {"ffn": "swiglu", "ffn_hidden": 50},
        {"ffn": "swiglu", "ffn_hidden": 33},
    ],
)
def test_sizes_that_are_no_multiples_of_anything(changes: dict) -> None:
    spec = ModelSpec.from_name("vitt16", **(SMALL | changes))
    expected, found = both(spec, torch.randn(2, 3, *spec.image_size), "fp32")
    close(found, expected, 1e-5)


def engine_of(recipe: str = "fp16") -> Engine:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    return Engine(spec, awake(random_checkpoint(spec).weights), get_stack(recipe), CPU)


def test_threads_share_an_engine() -> None:
    engine = engine_of()
    images = torch.randn(16, 2, 3, 64, 64)
    expected = [engine.logits(image)[0] for image in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = list(pool.map(lambda image: engine.logits(image)[0], images))
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))])
def test_copies_of_a_used_engine_work_by_themselves(copied: Callable[[Engine], Engine]) -> None:
    engine = engine_of()
    first, second = torch.randn(2, 2, 3, 64, 64)
    engine.logits(first)
    other = copied(engine)
    assert torch.equal(other.logits(second)[0], engine.logits(second)[0])
    assert torch.equal(other.logits(first)[0], engine.logits(first)[0])


def test_weights_may_change_afterwards() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    weights = awake(random_checkpoint(spec).weights)
    engine = Engine(spec, weights, get_stack("fp16"), CPU)
    crops = torch.randn(2, 3, 64, 64)
    before = Engine(spec, {k: v.clone() for k, v in weights.items()}, get_stack("fp16"), CPU).logits(crops)[0]
    for weight in weights.values():
        weight.mul_(2)
    weights.clear()
    assert torch.equal(engine.logits(crops)[0], before)
    engine.logits(torch.randn(3, 3, 64, 64))


def test_a_weight_that_is_too_large_is_found_at_once() -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    weights = random_checkpoint(spec).weights
    weights["backbone.blocks.1.mlp.fc1.weight"][0, 0] = 1e5
    with pytest.raises(
        UnsupportedError, match=r"blocks\.1\.mlp\.fc1: holds 1e\+05, more than float16 can: use"
    ):
        Engine(spec, weights, get_stack("fp16"), CPU)
    Engine(spec, weights, get_stack("bf16"), CPU)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_processes_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    spec = ModelSpec.from_name("vitt16", **SMALL)
    weights, crops = random_checkpoint(spec).weights, torch.randn(2, 3, 64, 64)
    engine = Engine(spec, weights, get_stack("bf16"), CPU)
    expected = engine.logits(crops)[0]
    torch.set_default_dtype(dtype)
    try:
        for one in (engine, Engine(spec, weights, get_stack("bf16"), CPU)):
            assert torch.equal(one.logits(crops)[0], expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("stack", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_callers_autocast_changes_nothing(stack: str, dtype: torch.dtype) -> None:
    engine, crops = engine_of(stack), torch.randn(2, 3, 64, 64)
    expected = engine.logits(crops)[0]
    with torch.autocast("cpu", dtype):
        assert torch.equal(engine.logits(crops)[0], expected)
