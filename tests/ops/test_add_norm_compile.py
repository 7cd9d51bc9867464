"""What the compiler makes of the kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

triton = pytest.importorskip("triton")
fused = pytest.importorskip("fasteomt.ops.add_norm.fused")

RESIDUAL = {"x": "*fp32", "delta": "*bf16"}
JOINT = {"x": "*fp32", "delta": "*fp16", "scale": "*fp32", "source": "*i32", "initial": "*fp32"}
EMBEDDED = {"x": "*bf16", "source": "*i32", "initial": "*fp32"}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("channels", "given"),
    [(1024, RESIDUAL), (1024, JOINT), (1024, EMBEDDED), (768, RESIDUAL), (192, RESIDUAL), (4096, RESIDUAL)],
)
def test_a_row_stays_in_registers(arch: str, channels: int, given: dict[str, str]) -> None:
    always = {"weight": "*fp32", "bias": "*fp32", "x_out": "*fp32", "out": "*bf16", "eps": "fp32"}
    left_out = {name: None for name in fused.add_norm.arg_names if name in JOINT and name not in given}
    constants = left_out | {"CHANNELS": channels, "BLOCK": triton.next_power_of_2(channels)}
    warps = fused.warps(channels)
    found = compile_for(arch, fused.add_norm, given | always, constants, num_warps=warps)
    assert found.spilled == 0
    assert found.registers <= 128  # 16 warps a processor
    assert "ld.global.v4" in found.ptx and "st.global.v4" in found.ptx
    assert found.shared <= 64  # partial sums of warps, no rows
    if warps == 1:
        assert found.shared == 0 and "bar.sync" not in found.ptx
