"""Crops side by side: the same results as together, in the same places, tuned for what runs beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine import Engine
from fasteomt.engine.binding import crops_of_chain
from fasteomt.engine.chains import Chains
from fasteomt.engine.program import Program
from fasteomt.engine.tuning import Entry, Table, problem_key
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import linear
from fasteomt.ops.target import Target
from fasteomt.plan import Group
from fasteomt.stacks import get_stack

CPU = torch.device("cpu")


def engine(spec: ModelSpec, name: str) -> Engine:
    return Engine(spec, random_checkpoint(spec).weights, get_stack(name), CPU)


@pytest.mark.parametrize("crops", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", ["fp16", "fp16+head16"])
def test_crops_side_by_side_give_what_they_give_alone(small_spec: ModelSpec, name: str, crops: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(crops, 3, small_spec.crop_size, small_spec.crop_size)
    plain, chained = engine(small_spec, name), engine(small_spec, f"{name}+chains")
    each = crops_of_chain(crops, 2)
    alone = [plain.logits(part) for part in images.split(each)]
    for found, expected in zip(chained.network(images), zip(*alone, strict=True), strict=True):
        assert torch.equal(found.float(), torch.cat(expected))


def test_programs_of_chains_share_what_they_read_and_write(small_spec: ModelSpec) -> None:
    chained = engine(small_spec, "bf16+chains")
    assert isinstance(chained.program(3), Program)
    chains, one = chained.program(4), chained.program(2)
    assert isinstance(chains, Chains) and isinstance(one, Chains)
    assert len(chains.crops) == len(chains.masks) == len(chains.classes) == 4
    assert chains.classes.shape[-1] == len(small_spec.class_ids) + 1
    marked: Counter[str] = Counter()

    @contextmanager
    def mark(group: Group) -> Iterator[None]:
        marked[str(group)] += 1
        yield

    masks, classes = chains.run(mark)
    assert masks.data_ptr() == chains.masks.data_ptr() and classes.data_ptr() == chains.classes.data_ptr()
    single = engine(small_spec, "bf16").program(2)
    assert len(chains.launches) == 2 * len(single.launches)
    assert set(marked.values()) >= {2} and sum(marked.values()) == len(chains.launches)


def test_a_table_knows_what_is_fastest_beside_another_chain() -> None:
    spec, target = ModelSpec.from_name("vitl16"), Target.named("sm_90")
    alone = linear.Problem(1029, 4096, 1024, torch.bfloat16, "gelu")
    both = replace(alone, m=2058)
    assert problem_key(alone, 2) == f"{problem_key(alone)},chains=2"
    table = Table(
        entries=(
            Entry("linear", problem_key(alone), "library", None, 10.0),
            Entry("linear", problem_key(both), "fused", None, 10.0),
            Entry("linear", problem_key(alone, 2), "cuda", None, 10.0),
        )
    )

    def implementation(stack: str) -> str:
        groups = get_stack(stack).plan(spec, target, table).groups
        return next(group.implementation for group in groups if "block.3.fc1" in group.sites)

    assert implementation("bf16") == "fused" and implementation("bf16+chains") == "cuda"
    # What was measured alone says nothing of chains.
    assert table.ranked("linear", replace(alone, m=2058), 2)[0].implementation == "cuda"
    assert Table(entries=table.entries[:2]).ranked("linear", alone, 2) == []
