"""Measured ceilings of a GPU are in a believable order."""

from __future__ import annotations

import pytest
import torch

from fasteomt.bench.ceilings import measure_ceilings

pytestmark = pytest.mark.gpu


def test_formats_stand_in_their_order() -> None:
    device = torch.device("cuda", 0)
    found = measure_ceilings(device, seconds=0.3)
    assert found.gpu == torch.cuda.get_device_name(device)
    flops = found.flops_per_s
    if torch.cuda.get_device_capability(device) >= (8, 0):
        assert flops["fp32"] < flops["tf32"] < flops["bf16"]
        assert flops["fp16"] == pytest.approx(flops["bf16"], rel=0.2)
    if torch.cuda.get_device_capability(device) >= (8, 9):
        assert flops["fp8_e4m3"] > 1.3 * flops["bf16"]
    if "H200" in found.gpu:
        assert found.copy_bytes_per_s == pytest.approx(4.2e12, rel=0.1)
        assert flops["bf16"] == pytest.approx(738e12, rel=0.1)
