"""What 'tuned' becomes in a plan, and which configurations kernels are run with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fasteomt.checkpoint import random_checkpoint
from fasteomt.engine import Engine
from fasteomt.engine.asked import asked
from fasteomt.engine.binding import bind
from fasteomt.engine.packing import Packing
from fasteomt.engine.tuning import Entry, Table, problem_key
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import attention, linear
from fasteomt.ops.attention import library as attention_library
from fasteomt.ops.linear import library
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import CPU, Target
from fasteomt.plan import Plan
from fasteomt.stacks import STACKS

SM_90 = Target.named("sm_90")
VITL = ModelSpec.from_name("vitl16")
FC1 = linear.Problem(2058, 4096, 1024, torch.bfloat16, "gelu")
JOINT = attention.Problem(Rows(2, 1024, 105), 16, 64, torch.bfloat16)


def entry(problem: object, name: str, us: float, config: dict[str, Any] | None = None) -> Entry:
    op = "attention" if isinstance(problem, attention.Problem) else "linear"
    return Entry(op, problem_key(problem), name, config, us)


def by_site(plan: Plan) -> dict[str, str]:
    return {name: group.implementation for group in plan.groups for name in group.sites}


def test_what_is_measured_to_be_fastest_is_planned_there_and_only_there() -> None:
    table = Table(entries=(entry(FC1, "fused", 40.0), entry(FC1, "cuda", 30.0), entry(JOINT, "library", 9.0)))
    plan = STACKS["bf16"].plan(VITL, SM_90, table)
    plan.check(VITL)
    found, unmeasured = by_site(plan), by_site(STACKS["bf16"].plan(VITL, SM_90, Table()))
    assert {unmeasured[site] for site in ("block.3.fc1", "block.19.fc2", "block.3.attention")} == {"fused"}
    changed = {site: name for site, name in found.items() if name != unmeasured[site]}
    first_joint = VITL.depth - VITL.num_joint_blocks
    # Only the number of rows differs in the joint blocks and in the upscaling: they take after it.
    expected = {f"block.{i}.{part}": "cuda" for i in range(VITL.depth) for part in ("fc1", "gelu")}
    expected |= {f"head.up{i}.{part}": "cuda" for i in (1, 2) for part in ("conv", "gelu")}
    expected |= {f"block.{i}.attention": "library" for i in range(first_joint, VITL.depth)}
    assert changed == expected
    # FP16 takes after BF16.
    assert by_site(STACKS["fp16"].plan(VITL, SM_90, table)) == found


def test_what_is_not_here_or_can_not_do_it_is_passed_over() -> None:
    """A table may come from a machine with more packages, and outlive an implementation."""
    names = ("gone", "library", "cuda", "fused")
    residual = replace(FC1, n=1024, k=4096, epilogue="residual")
    table = Table(entries=tuple(entry(residual, name, 10.0 + i) for i, name in enumerate(names)))
    assert by_site(STACKS["bf16"].plan(VITL, SM_90, table))["block.19.fc2"] == "cuda"
    assert by_site(STACKS["bf16"].plan(VITL, Target.named("sm_120"), table))["block.19.fc2"] == "fused"


@pytest.mark.parametrize("name", ["bf16", "fp16", "r5_v1"])
@pytest.mark.parametrize("arch", ["cpu", "sm_90", "sm_120"])
def test_no_plan_says_tuned(name: str, arch: str) -> None:
    for table in (None, Table(), Table(entries=(entry(FC1, "cuda", 1.0),))):
        plan = STACKS[name].plan(VITL, Target.named(arch), table)
        assert "tuned" not in {group.implementation for group in plan.groups}


def test_what_is_asked_needs_no_gpu_and_is_what_binding_asks(
    small_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = STACKS["bf16"].plan(small_spec, CPU)
    found = [(one.op, one.problem) for one in asked(small_spec, plan, 3)]
    bound: list[tuple[str, object]] = []
    from fasteomt.engine import binding

    find = binding.implementation

    def spy(op: str, name: str, target: Target, problem: object) -> object:
        bound.append((op, problem))
        return find(op, name, target, problem)

    monkeypatch.setattr(binding, "implementation", spy)
    packing = Packing(small_spec, random_checkpoint(small_spec).weights, torch.device("cpu"))
    bind(small_spec, plan, packing, torch.device("cpu"), 3, small_spec.crop_size, Table())
    assert found == bound
    assert {op for op, _ in found} >= {"linear", "attention", "add_norm", "mask_logits"}


def test_rows_of_blocks_alone_are_known(small_spec: ModelSpec) -> None:
    found = {
        one.group.sites[0]: one.rows for one in asked(small_spec, STACKS["bf16"].plan(small_spec, CPU), 2)
    }
    assert found["block.0.fc1"] == Rows(2, 16, 5)
    assert found["block.2.attention"] == Rows(2, 16, 13)
    assert found["patch_embed"] is found["head.class"] is None


@dataclass(frozen=True)
class Config:
    block: int


def swift(run: Callable[..., Any], seen: list[object], **others: Any) -> SimpleNamespace:
    """An implementation with a choice of two configurations, which tells with which it is run."""

    def configured(*arguments: Any, config: Config | None = None, **options: Any) -> Any:
        seen.append(config)
        return run(*arguments, **options)

    configs = (Config(64), Config(128))
    return SimpleNamespace(
        unsupported=lambda *_: None, candidates=lambda *_: configs, run=configured, **others
    )  # fmt: skip


def test_kernels_run_in_the_configurations_that_were_measured_for_their_problem(
    small_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    products: list[object] = []
    attentions: list[object] = []
    fakes = {
        "linear": swift(library.run, products, BIAS_DTYPE=None),
        "attention": swift(attention_library.run, attentions, WRITES_OUT=False),
    }
    for op, package in (("linear", linear), ("attention", attention)):
        monkeypatch.setitem(sys.modules, f"fasteomt.ops.{op}.swift", fakes[op])
        monkeypatch.setattr(package, "IMPLEMENTATIONS", (*package.IMPLEMENTATIONS, "swift"))
    plan = STACKS["bf16"].plan(small_spec, CPU)
    swapped = Plan(
        tuple(
            replace(group, implementation="swift")
            if group.sites[0].endswith((".fc1", ".attention"))
            else group
            for group in plan.groups
        )
    )
    gelu = linear.Problem(2 * 21, 128, 64, torch.bfloat16, "gelu")
    joint = attention.Problem(Rows(2, 16, 13), 2, 32, torch.bfloat16)
    table = Table(
        entries=(
            entry(gelu, "swift", 5.0, asdict(Config(128))),
            entry(gelu, "library", 1.0),
            entry(joint, "swift", 5.0, asdict(Config(128))),
        )
    )
    packing = Packing(small_spec, random_checkpoint(small_spec).weights, torch.device("cpu"))
    program = bind(small_spec, swapped, packing, torch.device("cpu"), 2, small_spec.crop_size, table)
    program.run()
    assert products == [Config(128)] * 3  # the third block, whose rows are more, takes after the others
    assert attentions == [None, None, Config(128)]


def test_an_engine_runs_what_its_plan_says(small_spec: ModelSpec) -> None:
    engine = Engine(small_spec, random_checkpoint(small_spec).weights, STACKS["bf16"], torch.device("cpu"))
    assert by_site(engine.plan)["block.0.fc1"] == "library"
