"""What the compiler makes of the kernel for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

from fasteomt.ops.target import Target

fused = pytest.importorskip("fasteomt.ops.mask_logits.fused")

PRODUCT = {"sm_90": "wgmma.mma_async", "sm_120": "mma.sync.aligned.m16n8k16"}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("channels", "queries", "dtype", "out"),
    [(1024, 100, "bf16", "bf16"), (768, 200, "fp16", "fp32"), (192, 50, "bf16", "bf16")],
)
def test_products_run_on_tensor_cores(arch: str, channels: int, queries: int, dtype: str, out: str) -> None:
    signature = {"queries": f"*{dtype}", "features": f"*{dtype}", "out": f"*{out}"}
    constants = {
        "QUERIES": queries,
        "CHANNELS": channels,
        "SIDE": 32,
        "LEVEL": 2,
        "BLOCK_M": fused.block_of_queries(queries),
        "BLOCK_N": fused.BLOCK_N,
        "BLOCK_K": fused.BLOCK_K,
    }
    options = {"num_warps": fused.WARPS, "num_stages": fused.STAGES}
    found = compile_for(arch, fused.multiply, signature, constants, **options)
    assert found.spilled == 0
    assert found.shared <= Target.named(arch).shared_memory
    if arch == "sm_90":
        assert 2 * (found.shared + 1024) <= 228 * 1024 and found.registers <= 128  # two programs a processor
    assert PRODUCT[arch] in found.ptx
    assert "cp.async.cg.shared.global" in found.ptx
    assert "st.global.v4" in found.ptx  # long runs, in raster order
