"""What the compiler makes of the kernels for GPUs that are not here."""

from __future__ import annotations

import pytest
from cross_compile import ARCHS, compile_for

from fasteomt.ops.target import Target

fused = pytest.importorskip("fasteomt.ops.post.fused")

PRODUCT = {"sm_90": "wgmma.mma_async", "sm_120": "mma.sync.aligned.m16n8k16"}
SCORES = {"masks": "*bf16", "weights": "*fp32", "scores": "*fp32"}
SHAPES = {"QUERIES": 100, "SIDE": 128, "RATIO": 4}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("classes", [1, 2, 8])
def test_few_classes_stay_in_registers(arch: str, classes: int) -> None:
    constants = SHAPES | {
        "CLASSES": classes,
        "ROWS": fused.rows_of_thread(4, classes),
        "TILE_Y": fused.TILE_Y,
        "TILE_X": fused.TILE_X,
        "DOUBLINGS": 2,
        "UNROLL": fused.UNROLL,
    }
    found = compile_for(arch, fused.score_few, SCORES, constants, num_warps=4)
    assert found.spilled == 0
    assert found.shared <= 4096  # of results on their way out: nothing within the loop
    assert found.registers <= 128
    assert "ex2.approx.ftz" in found.ptx and "rsqrt.approx.ftz" in found.ptx  # one instruction each
    assert "div." not in found.ptx
    assert "st.global.v4" in found.ptx  # neighbours together


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("classes", [19, 100, 150])
def test_many_classes_are_added_by_tensor_cores(arch: str, classes: int) -> None:
    tile = fused.product(classes)
    constants = SHAPES | {
        "CLASSES": classes,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
    }
    found = compile_for(arch, fused.score_many, SCORES, constants, num_warps=tile.warps)
    assert found.spilled == 0
    assert found.shared <= Target.named(arch).shared_memory
    assert PRODUCT[arch] in found.ptx


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("classes", "out", "sums"), [(2, "u8", True), (2, "u8", False), (150, "u16", True)])
def test_ids_need_no_shared_tiles(arch: str, classes: int, out: str, sums: bool) -> None:
    signature = {"scores": "*fp32", "tables": "*i32", "ids": "*i32", "out": f"*{out}", "capacity": "i32"}
    constants = {
        "CROPS": 2,
        "ENTRIES": 8,
        "CLASSES": classes,
        "GROUP": min(classes, fused.CLASSES_AT_ONCE),
        "SIZE": 512,
        "SUMS": sums,
        "TILE_Y": fused.FRAME_Y,
        "TILE_X": fused.FRAME_X,
    }
    if sums:
        signature["sums"] = "*i64"
    else:
        constants["sums"] = None
    found = compile_for(arch, fused.choose, signature, constants, num_warps=4)
    assert found.spilled == 0
    assert found.shared <= 128  # of the sums over a tile


@pytest.mark.parametrize("sums", [0, 4])
def test_class_probabilities_with_and_without_sums_to_clear(sums: int) -> None:
    constants = {
        "CLASSES": 2,
        "BLOCK": 4,
        "SUMS": sums,
        "BLOCK_SUMS": 4,
        **({} if sums else {"sums": None}),
    }
    signature = {"classes": "*bf16", "weights": "*fp32"} | ({"sums": "*i64"} if sums else {})
    assert compile_for("sm_90", fused.weigh, signature, constants, num_warps=1).spilled == 0
