"""Random words by Triton's interpreter, in a process of its own, saved to a file by seed and first offset."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def words_kernel(out_ptr, seed, first, OFFSETS: tl.constexpr):
    offsets = first + tl.arange(0, OFFSETS).to(tl.int64)
    r0, r1, r2, r3 = tl.randint4x(seed, offsets)
    words = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))
    tl.store(out_ptr + tl.arange(0, 4 * OFFSETS), words.to(tl.int64) & 0xFFFFFFFF)


if __name__ == "__main__":
    found = {}
    for seed, first in ((0, 0), (123456789012345, 0), (77, (7 << 32) + 8)):
        found[seed, first] = torch.zeros(64, dtype=torch.int64)
        words_kernel[(1,)](found[seed, first], seed, first, OFFSETS=16)
    torch.save(found, sys.argv[1])
