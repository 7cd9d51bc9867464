"""What the compiler makes of the kernels for GPUs that are not here."""

from __future__ import annotations

import pytest
import torch
from cross_compile import ARCHS, compile_for

from fasteomt.ops.depthwise_masks import Problem
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target

fused = pytest.importorskip("fasteomt.ops.depthwise_masks.fused")
folding = pytest.importorskip("fasteomt.ops.depthwise_masks.folding")

PRODUCT = {"sm_90": "wgmma.mma_async", "sm_120": "mma.sync.aligned.m16n8k16"}
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

PROBLEMS = [
    Problem(Grid(2, 32, 2), 100, 1024, torch.bfloat16, torch.float32),
    Problem(Grid(2, 32, 2), 100, 768, torch.float16, torch.float16),
    Problem(Grid(2, 32, 2), 200, 1024, torch.bfloat16, torch.bfloat16),
    Problem(Grid(1, 32, 2), 50, 192, torch.float16, torch.float32),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_sums_stay_in_registers(arch: str, problem: Problem) -> None:
    target = Target.named(arch)
    configs = fused.candidates(target, problem)
    assert configs
    signature = {
        "x": f"*{NAMES[problem.dtype]}",
        "taps": "*fp32",
        "folded": f"*{NAMES[problem.dtype]}",
        "sums": "*fp32",
        "out": f"*{NAMES[problem.out_dtype]}",
        "eps": "fp32",
    }
    for config in configs:
        found = compile_for(
            arch, fused.convolve_multiply, signature, fused.constants(config, problem), num_warps=config.warps
        )
        assert found.spilled == 0, config
        assert found.shared <= config.shared(problem) <= target.shared_memory, config
        assert PRODUCT[arch] in found.ptx
        # A pixel's neighbours are loaded once a strip, eight bytes at a time.
        pixels = (config.strip_y + 2) * (config.strip_x + 2)
        ahead = found.ptx.count("cp.async.ca.shared.global [ %r") + found.ptx.count("ld.global.v2.b32")
        assert ahead >= pixels, config
        assert "st.global.v4" in found.ptx  # runs of a line


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("channels", [192, 1024])
def test_folding_needs_few_registers(arch: str, channels: int) -> None:
    signature = {
        "queries": "*fp16", "norm_weight": "*fp32", "norm_bias": "*fp32", "folded": "*fp16", "sums": "*fp32",
    }  # fmt: skip
    constants = {"QUERIES": 100, "CHANNELS": channels, "BLOCK": folding.triton.next_power_of_2(channels)}
    found = compile_for(arch, folding.fold_queries, signature, constants)
    assert found.spilled == 0 and found.registers <= 64


def test_two_small_tiles_share_a_processor() -> None:
    target, problem = Target.named("sm_90"), PROBLEMS[0]
    small = [config for config in fused.candidates(target, problem) if config.warps == 4]
    assert small and all(2 * (config.shared(problem) + 1024) <= 228 * 1024 for config in small)


def test_channels_that_fill_no_step() -> None:
    target = Target.named("sm_90")
    problem = Problem(Grid(1, 4, 2), 10, 48, torch.float16, torch.float16)
    assert fused.unsupported(target, problem) is None
    assert {config.block_k for config in fused.candidates(target, problem)} == {16}
    refused = Problem(Grid(1, 4, 2), 10, 40, torch.float16, torch.float16)
    assert "multiple of 16" in fused.unsupported(target, refused)
