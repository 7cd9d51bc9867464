"""What the compiler makes of the kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

fused = pytest.importorskip("fasteomt.ops.patches.fused")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("source", "size", "patch"), [("fp32", 512, 16), ("bf16", 640, 16), ("fp32", 512, 32)]
)
def test_accesses_are_of_16_bytes(arch: str, source: str, size: int, patch: int) -> None:
    columns = patch * patch
    signature = {"crops": f"*{source}", "out": "*bf16", "total": "i32"}
    constants = {"SIZE": size, "PATCH": patch, "ROWS": fused.BLOCK // columns, "COLUMNS": columns}
    found = compile_for(arch, fused.cut, signature, constants, num_warps=4)
    assert found.spilled == 0 and found.shared == 0
    assert "ld.global.v4" in found.ptx and "st.global.v4" in found.ptx
