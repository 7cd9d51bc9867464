"""Scales of amax values never make what they should not: zeros, infinities, NaN."""

from __future__ import annotations

import pytest
import torch

from fasteomt.formats.minifloat import E4M3, E5M2, decode
from fasteomt.formats.quantise import quantise
from fasteomt.formats.recipe import Granularity, NvFp4
from fasteomt.formats.scales import (
    amax_of,
    fp32_scales,
    nvfp4_block_scales,
    nvfp4_tensor_scale,
    reciprocal,
)

AMAX = torch.tensor([0.0, 1e-45, 1e-40, 2.0**-126, 1e-30, 1.0, 448.0, 2688.0, 3e38])


def test_amax() -> None:
    x = torch.arange(-256.0, 256.0).view(2, 256)
    assert amax_of(x, Granularity.TENSOR, 1).tolist() == [[256]]
    assert amax_of(x, Granularity.ROW, 1).tolist() == [[256], [255]]
    assert torch.equal(amax_of(x, Granularity.CHANNEL, 1), torch.maximum(-x[:1], x[1:]))
    assert amax_of(x, Granularity.BLOCK, 128).tolist() == [[256, 128], [127, 255]]


@pytest.mark.parametrize("number", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_fp32_scales(number) -> None:
    scales = fp32_scales(AMAX, number)
    expected = (AMAX.double() / number.max).clamp(min=2.0**-126)
    assert scales[0] == 1
    assert torch.equal(scales[1:], expected.float()[1:])
    assert (reciprocal(scales).double() * scales.double() - 1).abs().max() <= 2.0**-24
    assert fp32_scales(torch.tensor([torch.nan, torch.inf]), number).isnan().all()


def test_nvfp4_scales() -> None:
    tensor_scale = nvfp4_tensor_scale(AMAX)
    assert tensor_scale[0] == 1
    assert torch.equal(tensor_scale[1:], (AMAX.double() / 2688).clamp(min=2.0**-117).float()[1:])
    assert nvfp4_tensor_scale(torch.tensor([torch.nan, torch.inf])).isnan().all()

    # With the tensor's own scale the largest block has the largest scale, unless that is at its lower limit.
    codes = nvfp4_block_scales(AMAX, tensor_scale)
    assert codes.dtype == torch.uint8
    assert codes.tolist()[4:] == [0x7E] * 5
    # Less than half the smallest scale, 2^-9, becomes 0; beyond the largest it stays the largest.
    amax = 6 * torch.tensor([2.0**-10, 2.0**-10 * 1.001, 2.0**-9, 1.0, 1000.0, torch.nan, torch.inf])
    found = decode(nvfp4_block_scales(amax, torch.tensor(1.0)), E4M3)
    assert found[:5].tolist() == [0, 2.0**-9, 2.0**-9, 1, 448]
    assert found[5:].isnan().all()


def test_reciprocals_are_rounded_divisions() -> None:
    scales = torch.rand(4096, generator=torch.Generator().manual_seed(0)) * 448
    scales[0] = 0
    tensor_scale = torch.tensor(0.0037)
    one = (1 / tensor_scale.double()).float()
    assert torch.equal(reciprocal(scales)[1:], (1 / scales.double()).float()[1:])
    assert torch.equal(reciprocal(scales, tensor_scale)[1:], (one.double() / scales.double()).float()[1:])
    assert reciprocal(scales)[0] == reciprocal(scales, tensor_scale)[0] == 0


@pytest.mark.parametrize("size", [2.0**-126, 1e-36, 1e-33])
def test_the_smallest_nvfp4_scales_have_finite_reciprocals(size: float) -> None:
    """A block at the lower end of block scales in a tensor at the lower end of tensor scales, with zeros."""
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = size, size * 2.0**-17
    q = quantise(x, NvFp4())
    assert q.element_values().isfinite().all()
    assert not q.dequantise()[x == 0].any()
    smallest = reciprocal(torch.tensor(2.0**-9), nvfp4_tensor_scale(torch.tensor(size)))
    assert smallest.isfinite()
