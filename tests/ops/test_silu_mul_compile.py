"""What the compiler makes of the kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

fused = pytest.importorskip("fasteomt.ops.silu_mul.fused")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("hidden", [5120, 8192])
def test_accesses_are_of_16_bytes(arch: str, hidden: int) -> None:
    constants = {"HIDDEN": hidden, "BLOCK": fused.BLOCK}
    found = compile_for(arch, fused.silu_mul, {"x": "*bf16", "out": "*bf16"}, constants, num_warps=4)
    assert found.spilled == 0 and found.shared == 0
    assert found.ptx.count("ld.global.v4") == 2 and found.ptx.count("st.global.v4") == 1
