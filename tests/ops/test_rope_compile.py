"""What the compiler makes of the rope kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

fused = pytest.importorskip("fasteomt.ops.rope.fused")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("half", "dtype"), [(32, "bf16"), (32, "fp16"), (64, "bf16")])
def test_loads_are_wide_and_nothing_spills(arch: str, half: int, dtype: str) -> None:
    heads = fused.VALUES // (2 * half)
    constants = {"WIDTH": 3072, "PATCHES": 1024, "EXTRAS": 5, "HALF": half, "HEADS": heads}
    signature = {"qkv": f"*{dtype}", "sin": "*fp32", "cos": "*fp32", "heads": "i32"}
    found = compile_for(arch, fused.turn, signature, constants, num_warps=fused.WARPS)
    assert found.spilled == 0
    assert found.shared == 0  # pairs stay in their threads
    assert "ld.global.v4" in found.ptx and "st.global.v4" in found.ptx
    assert found.registers <= 64
