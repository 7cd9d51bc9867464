"""A wide and deep model out of a narrow and shallow trained one, that computes nearly the same.

Depth: blocks are repeated, with their steps made smaller. With LayerScale a block adds gamma * f(x) to the
residual stream. k blocks that each add gamma / k * f do about what the one did, as k small steps of an
integrator do, and all of them work from the first step on.

Width: channels, heads and hidden units are copied, and whatever sums over them gives each copy a share of the
weight (Chen et al. 2016, Net2Net, arXiv:1511.05641). Where all channels have equally many copies this is
exact. Elsewhere LayerNorm's statistics count some channels once more than others, and it is only near.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from fasteomt.errors import InputError, brief
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec

# Shares are drawn within this part of their mean. With equal ones, copies would get equal gradients and stay
# copies for ever. The shares of a weight add up to 1, so what is computed does not depend on the draw, which
# noise on the weights themselves would change in every layer.
SPREAD = 0.5
GROWS = ("name", "embed_dim", "depth", "num_heads", "ffn_hidden", "num_joint_blocks")


def shallow(spec: ModelSpec, times: int) -> ModelSpec:
    """The same model with a `times`-th of its blocks, joint ones at least in part.

    Raises:
        InputError: the depth or the number of joint blocks can't be divided so.
    """
    if times < 1 or spec.depth % times or spec.num_joint_blocks % times:
        raise InputError(
            f"{spec.name}: {spec.depth} blocks, {spec.num_joint_blocks} of them joint, "
            f"can't be grown {times} times: choose a divisor of both"
        )
    return replace(spec, depth=spec.depth // times, num_joint_blocks=spec.num_joint_blocks // times)


def grown(
    weights: Mapping[str, Tensor], small: ModelSpec, large: ModelSpec, seed: int = 0
) -> dict[str, Tensor]:
    """Weights of `large`, fp32, out of those of `small`, which is no wider and no deeper.

    Args:
        weights: `Eomt(small)`'s, fp32, on the CPU.
        seed: of the shares that copies get.

    Raises:
        InputError: the models differ in more than width and depth, or `large` is narrower or shallower.
    """
    check_growth(small, large)
    wide = replace(large, depth=small.depth, num_joint_blocks=small.num_joint_blocks)
    generator = torch.Generator().manual_seed(seed)
    return _deeper(_wider(weights, wide, generator), copies_of_blocks(small, large))


def check_growth(small: ModelSpec, large: ModelSpec) -> None:
    """Raise InputError, in one line, unless `small` can be grown to `large`."""
    for field in fields(ModelSpec):
        ours, theirs = getattr(large, field.name), getattr(small, field.name)
        if field.name not in GROWS and ours != theirs:
            raise InputError(
                f"{small.name} can't be grown to {large.name}: {field.name} is {brief(theirs)} "
                f"and {brief(ours)}, must be the same"
            )
    head_dims = small.embed_dim // small.num_heads, large.embed_dim // large.num_heads
    if head_dims[0] != head_dims[1]:
        raise InputError(
            f"{small.name} can't be grown to {large.name}: heads have {head_dims[0]} and {head_dims[1]} "
            "channels, must have as many"
        )
    for what, before, after in (
        ("channels", small.embed_dim, large.embed_dim),
        ("hidden units", small.ffn_hidden, large.ffn_hidden),
        ("joint blocks", small.num_joint_blocks, large.num_joint_blocks),
        ("blocks before the joint ones", _before(small), _before(large)),
    ):
        if before > after or (before == 0 and after > 0):
            raise InputError(f"{small.name} can't be grown to {large.name}: from {before} {what} to {after}")


def copies_of_blocks(small: ModelSpec, large: ModelSpec) -> list[int]:
    """How often each block of `small` is repeated: as evenly as can be, joint ones and the others apart."""
    counts = []
    for before, after in (
        (_before(small), _before(large)),
        (small.num_joint_blocks, large.num_joint_blocks),
    ):
        counts += [(i + 1) * after // before - i * after // before for i in range(before)]
    return counts


def _before(spec: ModelSpec) -> int:
    return spec.depth - spec.num_joint_blocks


def _deeper(weights: Mapping[str, Tensor], counts: list[int]) -> dict[str, Tensor]:
    """Block i repeated counts[i] times, with so many times smaller steps."""
    block = "backbone.blocks."
    deep = {name: weight for name, weight in weights.items() if not name.startswith(block)}
    for i, count in enumerate(counts):
        first = sum(counts[:i])
        for name, weight in weights.items():
            if not name.startswith(f"{block}{i}."):
                continue
            rest = name.removeprefix(f"{block}{i}.")
            value = weight / count if rest.endswith(".gamma") else weight
            for k in range(count):
                deep[f"{block}{first + k}.{rest}"] = value.clone()
    return deep


def _wider(weights: Mapping[str, Tensor], wide: ModelSpec, generator: torch.Generator) -> dict[str, Tensor]:
    """Channel i becomes a copy of channel i modulo the narrow width, and heads and hidden units likewise.

    A head's channels lie side by side and are as many as before, so copies of heads are copies of channels.
    """
    with torch.device("meta"):
        model = Eomt(wide)
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    summed = {}  # weight: the dimension that its layer sums over
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.ConvTranspose2d):
            summed[f"{name}.weight"] = 1 if isinstance(module, nn.Linear) else 0
    result = {}
    for name, weight in weights.items():
        copies = weight
        for dim, (narrow, size) in enumerate(zip(weight.shape, shapes[name], strict=True)):
            # q, k and v are three matrices, one below the other.
            parts = 3 if ".qkv." in name and dim == 0 else 1
            starts = torch.arange(parts)[:, None] * (narrow // parts)
            rows = (starts + _source(narrow // parts, size // parts)).flatten()
            copies = copies.index_select(dim, rows)
        if name in summed:
            dim = summed[name]
            copies = copies * _shares(copies.shape, dim, weight.shape[dim], generator)
        result[name] = copies
    # Mask logits sum over channels too: over products of this layer's outputs and the upscaled patches.
    last = f"mask_head.{len(model.mask_head) - 1}"
    bias = weights[f"{last}.bias"]
    shares = _shares(result[f"{last}.bias"].shape, 0, len(bias), generator)
    result[f"{last}.weight"] *= shares[:, None]
    result[f"{last}.bias"] *= shares
    return result


def _source(narrow: int, wide: int) -> Tensor:
    """(wide,) int64: what each is a copy of."""
    return torch.arange(wide) % narrow


def _shares(shape: torch.Size, dim: int, narrow: int, generator: torch.Generator) -> Tensor:
    """Random factors, one for each weight of a layer that sums over `dim`.

    Returns:
        `shape` fp32: along `dim`, those of the copies of each of the `narrow` inputs add up to 1.
    """
    if narrow == shape[dim]:
        return torch.ones(shape)
    source = _source(narrow, shape[dim])
    parts = 1 + SPREAD * (2 * torch.rand(shape, generator=generator) - 1)
    sums = torch.zeros(*shape[:dim], narrow, *shape[dim + 1 :]).index_add_(dim, source, parts)
    return parts / sums.index_select(dim, source)
