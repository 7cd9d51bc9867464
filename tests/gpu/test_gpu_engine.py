"""Engines on a GPU: every geometry and variation near the reference, replays equal to launches, the plan's
kernels and no others, and nothing left behind on another device."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fasteomt.bench.ladder import rounds, stack_of
from fasteomt.bench.profile import profile_call, site_range
from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine import Engine
from fasteomt.engine.kernels import MAX_PROGRAMS
from fasteomt.model.spec import ModelSpec
from fasteomt.stacks import STACKS, Stack, get_stack

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
LADDER = Path(__file__).parents[2] / "infer-opt"
CHANGES = [folder for folder in rounds(LADDER) if (folder / "patch.py").exists()]
# At most twice the error of round 1, which is plain torch in the same format.
MARGIN = 2.0

GEOMETRIES = {
    "two crops": ("vitt16", 2, {}),
    "one crop": ("vitt16", 1, {}),
    "three crops": ("vits16", 3, {}),
    "five crops": ("vitt16", 5, {}),
    "two frames": ("vitb16", 4, {"depth": 4}),
    "large": ("vitl16", 2, {"depth": 5}),
    "crops of 640": ("vitt16", 2, {"image_size": (640, 640)}),
    "crops of 1024": ("vitt16", 1, {"image_size": (1024, 1024)}),
    "patch 32": ("vitt32", 2, {}),
    "SwiGLU": ("vits16plus", 2, {}),
    "one class": ("vitt16", 2, {"class_ids": (7,), "class_names": ("a",)}),
    "300 classes": (
        "vitt16",
        2,
        {"class_ids": tuple(range(300)), "class_names": tuple(map(str, range(300)))},
    ),
    "50 queries": ("vitt16", 2, {"num_queries": 50}),
    "101 queries": ("vitt16", 2, {"num_queries": 101}),
    "200 queries": ("vitt16", 2, {"num_queries": 200}),
}


def errors(spec: ModelSpec, crops: torch.Tensor, *stacks: Stack) -> list[float]:
    """Relative L2 error of each stack's mask logits."""
    weights = random_checkpoint(spec).weights
    expected, _ = Engine(spec, weights, get_stack("fp32"), GPU).logits(crops)
    found = [Engine(spec, weights, stack, GPU).logits(crops)[0] for stack in stacks]
    return [float((one - expected).norm() / expected.norm()) for one in found]


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_every_geometry_is_near_the_reference(name: str, recipe: str) -> None:
    model, count, changes = GEOMETRIES[name]
    spec = ModelSpec.from_name(model, **changes)
    crops = torch.randn(count, 3, spec.crop_size, spec.crop_size, device=GPU)
    plain = replace(stack_of(LADDER / "round1_torch_cleanup"), recipe=recipe)
    ours, torchs = errors(spec, crops, get_stack(recipe), plain)
    assert ours < MARGIN * torchs, (ours, torchs)


@pytest.mark.parametrize("folder", CHANGES, ids=lambda folder: folder.name)
def test_every_rounds_stack_is_near_the_reference_and_replays_bit_for_bit(folder: Path) -> None:
    stack, spec = stack_of(folder), ModelSpec.from_name("vits16")
    crops = torch.randn(2, 3, 512, 512, device=GPU)
    plain = replace(stack_of(LADDER / "round1_torch_cleanup"), recipe=stack.recipe)
    ours, torchs = errors(spec, crops, stack, plain)
    assert ours < MARGIN * torchs, (ours, torchs)
    engine = Engine(spec, random_checkpoint(spec).weights, stack, GPU)
    for one, other in zip(engine.logits(crops), engine.eager_logits(crops), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rope", ["rope", "linear", "attention"])
@pytest.mark.parametrize("add", ["add_norm", "linear"])
def test_every_way_to_fuse_is_near_the_reference(rope: str, add: str) -> None:
    spec = ModelSpec.from_name("vitb16", depth=4)
    crops = torch.randn(2, 3, 512, 512, device=GPU)
    varied = replace(STACKS["fp16"], rope=rope, add=add)
    plain = replace(stack_of(LADDER / "round1_torch_cleanup"), recipe="fp16")
    ours, torchs = errors(spec, crops, varied, plain)
    assert ours < MARGIN * torchs, (ours, torchs)


@pytest.mark.parametrize("crops", [1, 2, 4, 5])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("norm", ["add_norm", "linear"])
def test_norms_in_products_or_alone_are_near_the_reference_and_repeat_bit_for_bit(
    norm: str, name: str, crops: int
) -> None:
    spec = ModelSpec.from_name("vitb16", depth=4)
    images = torch.randn(crops, 3, 512, 512, device=GPU)
    plain = replace(stack_of(LADDER / "round1_torch_cleanup"), recipe=name)
    stack = replace(STACKS[name], norm=norm)
    ours, torchs = errors(spec, images, stack, plain)
    assert ours < MARGIN * torchs, (ours, torchs)
    engine = Engine(spec, random_checkpoint(spec).weights, stack, GPU)
    first = engine.logits(images)
    for _ in range(20):
        for one, other in zip(first, engine.logits(images), strict=True):
            assert torch.equal(one, other)
    for one, other in zip(first, engine.eager_logits(images), strict=True):
        assert torch.equal(one, other)


def test_engines_on_streams_of_their_own_do_not_wait_for_one_another_forever() -> None:
    """Blocks of a product wait for others of the same launch, which another engine's could keep out."""
    spec = ModelSpec.from_name("vitb16", depth=4)
    weights = random_checkpoint(spec).weights
    engines = [Engine(spec, weights, STACKS["bf16"], GPU) for _ in range(3)]
    images = torch.randn(2, 3, 512, 512, device=GPU)
    expected = engines[0].logits(images)
    streams = [torch.cuda.Stream(GPU) for _ in engines]
    for _ in range(200):
        for engine, stream in zip(engines, streams, strict=True):
            with torch.cuda.stream(stream):
                found = engine.network(images)
    torch.cuda.synchronize()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.float(), other)


def test_each_launch_is_one_kernel_of_its_group() -> None:
    """Else a plan's groups aren't what runs."""
    spec = ModelSpec.from_name("vitb16", depth=4)
    engine = Engine(spec, random_checkpoint(spec).weights, STACKS["bf16"], GPU)
    program = engine.program(2)
    found = profile_call(lambda: program.run(lambda group: site_range("+".join(group.sites))), GPU)
    launched = {row.site: row.kernels for row in found.sites}
    planned = ["+".join(launch.group.sites) for launch in program.launches]
    assert launched == Counter(planned)
    assert found.unattributed_kernels == 0 and found.host_waits == {}


def test_programs_are_bounded_and_memory_flat() -> None:
    spec = ModelSpec.from_name("vitt16")
    engine = Engine(spec, random_checkpoint(spec).weights, STACKS["bf16"], GPU)

    def through_all() -> int:
        for count in range(1, MAX_PROGRAMS + 3):
            engine.logits(torch.randn(count, 3, 512, 512, device=GPU))
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    through_all()
    first = through_all()
    for _ in range(3):
        assert through_all() <= 1.05 * first


def test_capture_while_another_thread_uses_the_gpu() -> None:
    spec = ModelSpec.from_name("vitt16")
    weights = random_checkpoint(spec).weights
    stop, failures = threading.Event(), []

    def busy() -> None:
        # Of its own: torch refuses the default one's numbers while anything is captured.
        generator = torch.Generator(GPU).manual_seed(0)
        try:
            while not stop.is_set():
                torch.randn(512, 512, device=GPU, generator=generator).sum().item()
        except RuntimeError as error:
            failures.append(error)

    other = threading.Thread(target=busy)
    other.start()
    try:
        engine = Engine(spec, weights, STACKS["bf16"], GPU)
        for count in (1, 2, 3):
            crops = torch.randn(count, 3, 512, 512, device=GPU)
            assert torch.equal(engine.logits(crops)[0], engine.eager_logits(crops)[0])
    finally:
        stop.set()
        other.join()
    assert failures == []


def test_twenty_replays_under_load_are_one() -> None:
    spec = ModelSpec.from_name("vitt16")
    engine = Engine(spec, random_checkpoint(spec).weights, STACKS["bf16"], GPU)
    crops = torch.randn(2, 3, 512, 512, device=GPU)
    expected = engine.logits(crops)[0]
    side, a = torch.cuda.Stream(), torch.randn(4096, 4096, device=GPU)
    for _ in range(20):
        with torch.cuda.stream(side):
            a @ a
        assert torch.equal(engine.logits(crops)[0], expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_second_gpu_leaves_the_first_alone() -> None:
    spec = ModelSpec.from_name("vitt16")
    torch.cuda.synchronize(0)
    before = torch.cuda.memory_allocated(0)
    second = torch.device("cuda", 1)
    engine = Engine(spec, random_checkpoint(spec).weights, STACKS["bf16"], second)
    crops = torch.randn(2, 3, 512, 512, device=second)
    found = engine.logits(crops)[0]
    assert found.device == second and torch.equal(found, engine.eager_logits(crops)[0])
    assert torch.cuda.memory_allocated(0) == before
    assert torch.cuda.current_device() == 0


def test_no_memory_left_is_a_clean_error_and_harms_nothing() -> None:
    spec = ModelSpec.from_name("vitt16")
    weights = random_checkpoint(spec).weights
    engine = Engine(spec, weights, STACKS["bf16"], GPU)
    crops = torch.randn(2, 3, 512, 512, device=GPU)
    expected = engine.logits(crops)[0]
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    filler = torch.empty(max(free - (256 << 20), 1), dtype=torch.uint8, device=GPU)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            Engine(spec, weights, STACKS["bf16"], GPU).logits(torch.randn(64, 3, 512, 512, device=GPU))
        assert torch.equal(engine.logits(crops)[0], expected)
    finally:
        del filler
        torch.cuda.empty_cache()
    assert torch.equal(Engine(spec, weights, STACKS["bf16"], GPU).logits(crops)[0], expected)


def test_no_synchronisation_and_one_launch_a_frame() -> None:
    spec = ModelSpec.from_name("vitt16")
    engine = Engine(spec, random_checkpoint(spec).weights, STACKS["bf16"], GPU)
    crops = torch.randn(2, 3, 512, 512, device=GPU)
    found = profile_call(lambda: engine.network(crops), GPU)
    assert found.host_waits == {}
