"""Philox4x32-10: random words as a function of seed and position, in integer torch operations.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11), section 3.3. Counter and key are laid
out as Triton does: `triton.language.randint4x(seed, offset)` gives the words of `words_at(seed, offset)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fasteomt.errors import InputError, brief

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Four words for each counter. All are int64 tensors of one shape that hold unsigned 32-bit words; so are
    the two words of `key`."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return [c0, c1, c2, c3]


def words_at(seed: int, offset: Tensor) -> list[Tensor]:
    """Four words, int64 tensors of `offset`'s shape with values below 2^32, for each int64 offset >= 0.

    The seed's low and high halves are the key's words; the offset's are the counter's first two, and its last
    two are 0.

    Raises:
        InputError: a seed outside 0 .. 2^63 - 1.
    """
    if not 0 <= seed < 1 << 63:
        raise InputError(f"seed {brief(seed)}: must be from 0 to 2^63 - 1")
    zero = torch.zeros_like(offset)
    return philox4x32((offset & _MASK, offset >> 32, zero, zero), (seed & _MASK, seed >> 32))


def random_words(seed: int, count: int, device: torch.device | None = None) -> Tensor:
    """(count,) int64, values below 2^32: the word of element i is word i % 4 at offset i // 4.

    One Philox call makes four words, since calls are what stochastic rounding spends its time on. In Triton,
    for consecutive elements: `r0, r1, r2, r3 = tl.randint4x(seed, offsets)`, and their words in order are
    `tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))`.
    """
    offsets = torch.arange(-(-count // 4), device=device)
    return torch.stack(words_at(seed, offsets), dim=1).flatten()[:count]


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low words of a 32 x 32 bit product, in halves so that int64 doesn't overflow."""
    low = (word & 0xFFFF) * multiplier
    middle = (word >> 16) * multiplier + (low >> 16)
    return middle >> 16, (middle & 0xFFFF) << 16 | low & 0xFFFF
