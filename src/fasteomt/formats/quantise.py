"""Tensors to quantised values and back: the reference of every quantising kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.formats import e8m0, packing, scales
from fasteomt.formats.delayed import DelayedAmax
from fasteomt.formats.minifloat import E4M3, decode, encode
from fasteomt.formats.recipe import Delayed, Dynamic, Fp8, Granularity, Mx, NvFp4, Recipe, Static

Given = Tensor | DelayedAmax | None


@dataclass(frozen=True, eq=False)
class Quantised:
    """A tensor of `shape` (..., K), which counts as a matrix of R rows of K values.

    codes: uint8 (R, K), or (R, K / 2) for FP4, two a byte.
    scales: fp32 (1, 1), (R, 1), (1, K) or (R, K / 128) for FP8; uint8 E8M0 (R, K / 32) for MX; uint8 E4M3
        (R, K / 16) for NVFP4.
    tensor_scale: () fp32, of NVFP4 alone.
    saturated: () int64, how many elements rounded beyond the largest one.
    """

    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor | None
    recipe: Recipe
    shape: torch.Size
    saturated: Tensor

    @property
    def bits_per_value(self) -> float:
        """Bits of codes and scales for each value; one scale of a whole tensor counts as nothing."""
        stored = self.codes.numel()
        if self.scales.numel() > 1:
            stored += self.scales.numel() * self.scales.element_size()
        return 8 * stored / self.shape.numel()

    def element_values(self) -> Tensor:
        """(R, K) fp32: what the codes say, without any scale."""
        number = self.recipe.number
        return decode(packing.unpack(self.codes) if number.bits == 4 else self.codes, number)

    def block_values(self) -> Tensor:
        """(R, K) fp32: elements times `scales`.

        Exact for MX and NVFP4: a power of two changes no significand, and E2M1 times E4M3 has at most 6 bits
        of it, so that it is exact in bf16 too. With fp32 scales it is rounded once. MX values of 2^128 and
        more, which only an amax above 2^127 can lead to, are infinite.
        """
        return self.element_values() * _spread(_decoded(self.scales, self.recipe), self.recipe)

    def dequantise(self) -> Tensor:
        """fp32 of `shape`: `block_values`, times the tensor's scale where there is one, rounded once more."""
        values = self.block_values()
        if self.tensor_scale is not None:
            values = values * self.tensor_scale
        return values.view(self.shape)


def quantise(x: Tensor, recipe: Recipe, given: Given = None, seed: int | None = None) -> Quantised:
    """Quantise fp32, fp16 or bf16 values of shape (..., K).

    Arithmetic is fp32: a value times the reciprocal of its scale, (1 / tensor scale) / block scale for NVFP4,
    is rounded by `minifloat.encode`, which says what `seed` does.

    given: what the recipe's source asks for. Dynamic: nothing. Static: the fp32 scales, in the shape that
        `Quantised.scales` has, or of a whole tensor any shape of one value; finite, and at least 2^-126
        (2^-117 for NVFP4). Delayed: the state, which moves on by this tensor.

    Not a number and infinities: where scales come from the very tensor, all values that share a scale with
    one decode as NaN. Where scales are given or delayed, FP8 keeps NaN, and infinities saturate.

    Raises:
        InputError: a dtype, a shape, a seed or a `given` that the recipe can't take.
    """
    if x.dim() == 0 or x.numel() == 0 or x.shape[-1] % recipe.block:
        needed = f"rows of a multiple of {recipe.block} values" if recipe.block > 1 else "rows of values"
        raise InputError(f"cannot quantise shape {tuple(x.shape)} as {recipe.name}: {needed} are needed")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise InputError(f"cannot quantise {x.dtype}: convert to float32, float16 or bfloat16 first")
    rows = x.detach().reshape(-1, x.shape[-1]).float()
    found, tensor_scale = _scales(rows, recipe, given)
    inverse = scales.reciprocal(_decoded(found, recipe), tensor_scale)
    codes, saturated = encode(rows * _spread(inverse, recipe), recipe.number, seed)
    if recipe.number.bits == 4:
        codes = packing.pack(codes)
    return Quantised(codes, found, tensor_scale, recipe, x.shape, saturated)


def _scales(rows: Tensor, recipe: Recipe, given: Given) -> tuple[Tensor, Tensor | None]:
    """`Quantised.scales` and `Quantised.tensor_scale`."""
    match recipe:
        case Fp8():
            amax = scales.amax_of(rows, recipe.granularity, recipe.block)
            scale_of = partial(scales.fp32_scales, number=recipe.number)
            return _from_source(recipe, amax, scale_of, given), None
        case Mx():
            if given is not None:
                raise InputError(f"recipe {recipe.name}: scales come from the tensor, none can be given")
            amax = scales.amax_of(rows, Granularity.BLOCK, recipe.block)
            return e8m0.encode_amax(amax, recipe.number, recipe.rule), None
        case NvFp4():
            amax = scales.amax_of(rows, Granularity.BLOCK, recipe.block)
            tensor_scale = _from_source(recipe, amax.amax().view(1, 1), scales.nvfp4_tensor_scale, given)
            return scales.nvfp4_block_scales(amax, tensor_scale), tensor_scale.view(())


def _from_source(
    recipe: Fp8 | NvFp4, amax: Tensor, scale_of: Callable[[Tensor], Tensor], given: Given
) -> Tensor:
    """fp32 scales of `amax`'s shape from wherever the recipe takes them."""
    match recipe.source:
        case Dynamic():
            if given is None:
                return scale_of(amax)
            needed = "nothing"
        case Static():
            if isinstance(given, Tensor) and given.dtype == torch.float32:
                if given.shape == amax.shape:
                    return given
                if given.numel() == amax.numel() == 1:
                    return given.view(amax.shape)
            needed = f"a float32 tensor of shape {tuple(amax.shape)}"
        case Delayed() as source:
            if isinstance(given, DelayedAmax) and given.source == source:
                return scale_of(given.use(amax)).view(amax.shape)
            needed = f"a DelayedAmax of {source.name}"
    found = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    raise InputError(f"recipe {recipe.name}: the given scale is {found}: {needed} is needed")


def _decoded(found: Tensor, recipe: Recipe) -> Tensor:
    """fp32 values of `Quantised.scales`."""
    match recipe:
        case Fp8():
            return found
        case Mx():
            return e8m0.decode(found)
        case NvFp4():
            return decode(found, E4M3)


def _spread(of_blocks: Tensor, recipe: Recipe) -> Tensor:
    """(R or 1, blocks) values so that they broadcast against (R, K)."""
    return of_blocks.repeat_interleave(recipe.block, dim=1)
