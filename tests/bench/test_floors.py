"""Floors against counts by hand, at ceilings that were measured on an H200."""

from __future__ import annotations

import pytest

from fasteomt.bench.ceilings import Ceilings
from fasteomt.bench.costs import SiteCost, site_costs
from fasteomt.bench.floors import floor, floor_table
from fasteomt.errors import UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import plan_by_op

H200 = Ceilings(
    gpu="NVIDIA H200",
    date="2026-11-30T00:00:00+00:00",
    torch="2.11.0",
    copy_bytes_per_s=4.2e12,
    flops_per_s={"bf16": 738e12, "fp16": 714e12, "fp8_e4m3": 1508e12},
)


def test_vit_l_two_crops_by_hand() -> None:
    """ViT-L/16, 512x512: width 1024, 24 blocks, 100 queries in the last 4, two upscale blocks."""
    c, crops = 1024, 2
    tokens = 32 * 32 + 1 + 4
    gemms = 0
    attention = 0
    for block in range(24):
        n = tokens + 100 if block >= 20 else tokens
        gemms += 2 * crops * n * (3 * c * c + c * c + 4 * c * c + 4 * c * c)
        attention += crops * 2 * (2 * n * n * c)
    patch_embed = 2 * crops * 1024 * (3 * 16 * 16) * c
    transposed = 2 * crops * 1024 * c * 4 * c + 2 * crops * 4096 * c * 4 * c
    mask_mlp = 3 * 2 * crops * 100 * c * c
    classes = 2 * crops * 100 * c * 3
    products = 2 * crops * 100 * c * (128 * 128)
    by_hand = (gemms + attention + patch_embed + transposed + mask_mlp + classes + products) / 738e12

    spec = ModelSpec.from_name("vitl16")
    table = floor_table(site_costs(spec, plan_by_op(spec, "torch", lambda op: "bf16"), crops), H200)
    assert table.arithmetic_s == pytest.approx(by_hand, rel=0.01)
    assert table.arithmetic_s == pytest.approx(2.13e-3, rel=0.01)


def test_vit_b_two_crops() -> None:
    spec = ModelSpec.from_name("vitb16")
    table = floor_table(site_costs(spec, plan_by_op(spec, "torch", lambda op: "bf16"), 2), H200)
    assert table.arithmetic_s == pytest.approx(0.67e-3, rel=0.01)


def test_each_site_has_its_own_ceiling() -> None:
    assert floor(SiteCost("a", "gemm", "bf16", int(738e9), 1e9), H200) == pytest.approx(1e-3)
    assert floor(SiteCost("a", "gemm", "fp8_e4m3", int(1508e9), 1e9), H200) == pytest.approx(1e-3)
    assert floor(SiteCost("a", "attention", "fp16", int(714e9), 1e9), H200) == pytest.approx(1e-3)
    assert floor(SiteCost("a", "conv", "bf16", int(738e9), 1e9), H200) == pytest.approx(1e-3)
    for op in ("layer_norm", "depthwise_conv", "gelu"):
        assert floor(SiteCost("a", op, "fp32", int(1e12), 4.2e9), H200) == pytest.approx(1e-3)


def test_a_format_without_a_measured_peak_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"site block\.0\.fc1: no peak of 'mxfp4' .*NVIDIA H200"):
        floor(SiteCost("block.0.fc1", "gemm", "mxfp4", 1, 1.0), H200)


def test_totals_are_the_rows_sums_and_the_frame_can_be_left_out() -> None:
    spec = ModelSpec.from_name("vitb16")
    costs = site_costs(spec, plan_by_op(spec, "torch", lambda op: "bf16"), 2)
    table = floor_table(costs, H200)
    assert [row.cost for row in table.rows] == list(costs)
    assert table.total_s == pytest.approx(sum(row.seconds for row in table.rows))
    assert table.total_s == pytest.approx(table.arithmetic_s + table.memory_s)
    model = table.without_frame()
    left_out = [row for row in table.rows if row not in model.rows]
    assert [row.cost.site for row in left_out] == ["frame.prep", "frame.post"]
    assert model.total_s == pytest.approx(table.total_s - sum(row.seconds for row in left_out))
    # bf16, 2058 rows: read and write of the hidden layer, twice
    gelu = next(row for row in table.rows if row.cost.site == "block.0.gelu")
    assert gelu.bound == "memory"
    assert gelu.seconds == pytest.approx(2 * 2058 * 3072 * 2 / 4.2e12)
