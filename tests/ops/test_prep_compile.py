"""What the compiler makes of the kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

fused = pytest.importorskip("fasteomt.ops.prep.fused")

POINTERS = {"frame": "*u8", "chroma": "*u8", "table": "*i32", "parameters": "*fp32", "out": "*bf16"}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("layout", ["rgb", "nv12", "yuyv"])
def test_frames_are_read_in_words(arch: str, layout: str) -> None:
    constants = {"SIZE": 512, "PATCH": 16, "LAYOUT": layout, "BLOCK": fused.BLOCK, "ROWS": fused.ROWS}
    signature = dict(POINTERS)
    if layout != "nv12":
        del signature["chroma"]
        constants["chroma"] = None
    found = compile_for(arch, fused.prepare, signature, constants, num_warps=fused.WARPS)
    assert found.spilled == 0 and found.shared == 0
    assert found.registers <= 80  # then six programs fit a processor: 24 warps
    assert "ld.global.b8" not in found.ptx and "ld.global.b32" in found.ptx
