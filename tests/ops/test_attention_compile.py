"""What the compiler makes of the attention kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
import torch
from cross_compile import ARCHS, Compiled, compile_for

from fasteomt.ops.attention import Problem
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

fused = pytest.importorskip("fasteomt.ops.attention.fused")

PLAIN, JOINT, COARSE = Rows(2, 1024, 5), Rows(2, 1024, 105), Rows(2, 256, 5)
# Triton 3.6's assembler for sm_120 keeps 8 bytes of stack beside TMA copies; it spills nothing.
STACK = 8
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def compiled(arch: str, problem: Problem, config: object) -> Compiled:
    constants = fused.constants(config, problem.rows, problem.head_dim, problem.rope)
    dtype = NAMES[problem.dtype]
    signature = {
        "blocks": f"tensordesc<{dtype}[{config.block_n},{problem.head_dim}]>",  # type: ignore[attr-defined]
        "qkv": f"*{dtype}",
        "out": f"*{dtype}",
        "sin": "*fp32",
        "cos": "*fp32",
        "pairs": "i32",
        "heads": "i32",
    }
    options = {"num_warps": config.warps, "num_stages": config.stages, "maxnreg": config.registers}  # type: ignore[attr-defined]
    return compile_for(arch, fused.attend, signature, constants, **options)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(PLAIN, 16, 64, torch.bfloat16),
        Problem(JOINT, 16, 64, torch.float16),
        Problem(COARSE, 3, 64, torch.bfloat16),
        Problem(PLAIN, 16, 64, torch.bfloat16, rope=True),
        Problem(PLAIN, 32, 128, torch.bfloat16),
    ],
)
def test_first_choice_fits_and_uses_tensor_cores(arch: str, problem: Problem) -> None:
    target = Target.named(arch)
    config = fused.config(target, problem)
    found = compiled(arch, problem, config)
    assert found.spilled <= STACK
    assert found.shared <= min(target.shared_memory, config.shared(problem))
    assert ("wgmma.mma_async" if arch == "sm_90" else "mma.sync") in found.ptx
    assert "cp.async.bulk.tensor" in found.ptx


@pytest.mark.parametrize("rows", [PLAIN, JOINT, COARSE])
def test_two_programs_fit_a_hopper_processor(rows: Rows) -> None:
    problem = Problem(rows, 16, 64, torch.bfloat16)
    target = Target.named("sm_90")
    config = fused.config(target, problem)
    found = compiled("sm_90", problem, config)
    assert 2 * 32 * config.warps * found.registers <= 65536
    assert 2 * (found.shared + 1024) <= 228 * 1024


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("rope", [False, True])
def test_every_candidate_compiles_without_spills(arch: str, rope: bool) -> None:
    problem = Problem(PLAIN, 16, 64, torch.bfloat16, rope)
    for config in fused.candidates(Target.named(arch), problem):
        found = compiled(arch, problem, config)
        assert found.spilled <= STACK, config
        assert found.shared <= config.shared(problem), config


@pytest.mark.parametrize("arch", ARCHS)
def test_half_accumulate_sums_values_in_fp16(arch: str) -> None:
    problem = Problem(PLAIN, 16, 64, torch.float16, half_accumulate=True)
    found = compiled(arch, problem, fused.config(Target.named(arch), problem))
    wanted = {"sm_90": ".f16.f16.f16", "sm_120": "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"}[arch]
    assert wanted in found.ptx
    assert found.spilled <= STACK


def test_candidates_fit_the_target() -> None:
    for arch in ("sm_90", "sm_100", "sm_120"):
        target = Target.named(arch)
        for dim in (64, 128):
            for rope in (False, True):
                problem = Problem(PLAIN, 16, dim, torch.bfloat16, rope)
                if fused.unsupported(target, problem) is None:
                    found = fused.candidates(target, problem)
                    assert found
                    assert all(config.shared(problem) <= target.shared_memory for config in found)
