"""What the compiler makes of the kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

triton = pytest.importorskip("triton")
fused = pytest.importorskip("fasteomt.ops.depthwise_norm.fused")

SIGNATURE = {
    "x": "*bf16",
    "weight": "*fp32",
    "norm_weight": "*fp32",
    "norm_bias": "*fp32",
    "out": "*bf16",
    "eps": "fp32",
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("channels", "level"), [(1024, 2), (768, 2), (4096, 2)])
def test_sums_stay_in_registers(arch: str, channels: int, level: int) -> None:
    tile_y, tile_x, warps = fused.config(channels)
    constants = {
        "SIDE": 32,
        "LEVEL": level,
        "CHANNELS": channels,
        "BLOCK": triton.next_power_of_2(channels),
        "TILE_Y": tile_y,
        "TILE_X": tile_x,
        "DOUBLINGS": (tile_y * tile_x).bit_length() - 1,
    }
    options = {"num_warps": warps, "maxnreg": fused.REGISTERS}
    found = compile_for(arch, fused.convolve_norm, SIGNATURE, constants, **options)
    assert found.spilled == 0
    assert found.shared <= 1024  # partial sums alone: nothing else moves between threads
    values = 8 if channels == 4096 else 4  # a thread's channels: 16 bytes or 8
    loads = found.ptx.count(f"ld.global.v{values // 2}.b32")
    assert loads >= (tile_y + 2) * (tile_x + 2)
    assert found.ptx.count(f"st.global.v{values // 2}.b32") == tile_y * tile_x
