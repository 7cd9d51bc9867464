"""How far approximate values are from exact ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.formats.quantise import Quantised, quantise
from fasteomt.formats.recipe import Recipe


@dataclass(frozen=True)
class Measures:
    """relative_l2: |y - x| / |x|. dissimilarity: 1 - 2<x, y> / (|x|² + |y|²), about half of relative_l2²:
    what FP8 GEMM libraries are tested by. max_abs: the largest |y - x|. Shares are of all values: `saturated`
    rounded beyond the largest element, `underflowed` became 0 without being it."""

    relative_l2: float
    dissimilarity: float
    max_abs: float
    saturated: float
    underflowed: float


def relative_l2(exact: Tensor, approximate: Tensor) -> float:
    """|approximate - exact| / |exact| in fp64; 0 where both are all zeros."""
    error = (approximate.double() - exact.double()).norm()
    return float(torch.where(error == 0, error, error / exact.double().norm()))


def dissimilarity(exact: Tensor, approximate: Tensor) -> float:
    """1 - 2<x, y> / (|x|² + |y|²) in fp64; 0 where both are all zeros."""
    x, y = exact.double(), approximate.double()
    # The same as |x - y|² / (|x|² + |y|²), which doesn't cancel.
    error = (x - y).square().sum()
    return float(torch.where(error == 0, error, error / (x.square().sum() + y.square().sum())))


def measure(x: Tensor, quantised: Quantised) -> Measures:
    """Of a tensor and what it was quantised to."""
    y = quantised.dequantise()
    count = x.numel()
    return Measures(
        relative_l2=relative_l2(x, y),
        dissimilarity=dissimilarity(x, y),
        max_abs=float((y.double() - x.double()).abs().max()),
        saturated=int(quantised.saturated) / count,
        underflowed=int(((y == 0) & (x != 0)).sum()) / count,
    )


def gemm_error(recipe: Recipe, size: int = 512, seed: int = 0) -> float:
    """Relative L2 error of one product of two (size, size) matrices of standard normal values, both
    quantised, computed in fp64. For dynamic recipes.

    The operands' errors, e each, are independent, so that it is about sqrt(2) e: .038 for MXFP8 (by the
    ceil rule), .135 for NVFP4 and .163 for MXFP4, whose e are .027, .095 and .115.
    """
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, size, size, generator=generator)
    qa, qb = (quantise(matrix, recipe).dequantise().double() for matrix in (a, b))
    return relative_l2(a.double() @ b.double().T, qa @ qb.T)
