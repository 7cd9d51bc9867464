"""Flash attention: a program keeps a tile of queries and goes over all keys, with a running softmax.

Keys that fill no whole block come last, in a block of their own that is as small as possible; so the loop
needs no masks and its loads may be TMA copies that never leave the crop. Query rows that fill no tile get a
small tile of their own, too, and are started first: 1029 tokens are 8 tiles of 128 and one of 16 rows.
For ViT-L and two crops that is 256 large programs, two for each of an H200's 132 processors, that run at
once, with 32 small ones beside them; two programs a processor let the exponentials of one hide behind the
tensor cores' work for the other. 1129 tokens leave 105 rows, which take a large tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fasteomt.ops.attention import Problem
from fasteomt.ops.early import early
from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

WRITES_OUT = True


@dataclass(frozen=True)
class Config:
    """`block_m`: queries of a program; `block_n`: keys a step; `registers`: of a thread, at most, or None.

    `small`: rows that fill no tile get the smallest that holds them.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int | None = None
    small: bool = True
    half_accumulate: bool = False

    def shared(self, problem: Problem) -> int:
        """Bytes of shared memory at most: queries, the last block, and by stage keys, values, angles."""
        line = 2 * problem.head_dim
        stage = self.block_n * (4 if problem.rope else 2) * line
        return (self.block_m + 2 * self.block_n) * line + self.stages * stage + 1024

    def small_rows(self, tokens: int) -> int:
        """Rows of the small tile, or 0 if all tiles are alike."""
        rest = max(16, triton.next_power_of_2(tokens % self.block_m))
        worth = self.small and tokens % self.block_m and rest < self.block_m < tokens
        return rest if worth else 0


# Values of `Config`, the likely best first, by whether there is the shared memory of sm_90 and sm_100 or that
# of sm_120, by head_dim and by rope. With 8 warps, 128 queries and 64 keys a thread keeps 32 scores and 32
# (D = 64) sums: below 128 registers on sm_90, so that two programs fit a processor. 32 keys fit 80 registers,
# thus three programs, but load queries twice as often. Turning keys takes more registers. Three stages are
# two loads ahead: with two, each would be waited for as soon as it is asked for.
_CONFIGS: dict[tuple[bool, int, bool], list[tuple[int, int, int, int, int | None]]] = {
    (True, 64, False): [
        (128, 64, 8, 3, None),
        (128, 32, 8, 4, 80),
        (128, 64, 4, 3, None),
        (128, 128, 8, 3, None),
        (64, 64, 4, 3, None),
        (64, 32, 4, 4, 96),
    ],
    (True, 64, True): [(128, 32, 8, 4, None), (128, 64, 8, 3, None), (64, 64, 4, 3, None)],
    (True, 128, False): [(128, 64, 8, 3, None), (128, 128, 8, 2, None)],
    (True, 128, True): [(128, 64, 8, 2, None), (128, 32, 8, 3, None)],
    (False, 64, False): [(64, 64, 4, 3, None), (128, 64, 8, 3, None), (64, 32, 4, 3, None)],
    (False, 64, True): [(64, 32, 4, 3, None), (128, 32, 8, 3, None)],
    (False, 128, False): [(128, 32, 8, 2, None), (32, 32, 4, 2, None)],
}


def _roomy(target: Target) -> bool:
    return target.shared_memory > 160_000


def unsupported(target: Target, problem: Problem) -> str | None:
    if target.sm < 90:
        return "needs an NVIDIA GPU of sm_90 or newer: use 'library'"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"{problem.dtype}: float16 or bfloat16 only"
    if problem.head_dim not in (64, 128):
        return f"head_dim {problem.head_dim}: 64 or 128 only"
    if (_roomy(target), problem.head_dim, problem.rope) not in _CONFIGS:
        return "turned keys of 128 features fill the registers: run the op 'rope' before it"
    if problem.half_accumulate and problem.dtype != torch.float16:
        return f"half_accumulate of {problem.dtype}: float16 only"
    return None


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """Launch configurations worth timing, the likely best one first."""
    values = _CONFIGS[_roomy(target), problem.head_dim, problem.rope]
    found = [Config(*each, half_accumulate=problem.half_accumulate) for each in values]
    programs = problem.rows.crops * problem.heads * triton.cdiv(problem.rows.tokens, 128)
    if programs < target.processors:
        found.sort(key=lambda config: config.block_m)
    return tuple(config for config in found if config.shared(problem) <= target.shared_memory)


def config(target: Target, problem: Problem) -> Config:
    """The first of the candidates."""
    return candidates(target, problem)[0]


@lru_cache
def _config_on(device: torch.device, problem: Problem) -> Config:
    return config(Target.of(device), problem)


def run(
    qkv: Tensor,
    out: Tensor,
    heads: int,
    rows: Rows,
    rotation: Rotation | None = None,
    config: Config | None = None,
) -> Tensor:
    """Write into `out` (rows.total, heads D), contiguous, and return it; qkv is contiguous."""
    head_dim = out.shape[1] // heads
    if config is None:
        config = _config_on(qkv.device, Problem(rows, heads, head_dim, qkv.dtype, rotation is not None))
    pairs = rows.crops * heads
    small = config.small_rows(rows.tokens)
    tiles = rows.tokens // config.block_m + 1 if small else triton.cdiv(rows.tokens, config.block_m)
    blocks = TensorDescriptor.from_tensor(qkv, [config.block_n, head_dim])
    attend[(pairs * tiles,)](
        blocks,
        qkv,
        out,
        rotation.sin if rotation else qkv,
        rotation.cos if rotation else qkv,
        pairs,
        heads,
        **constants(config, rows, head_dim, rotation is not None),
        num_warps=config.warps,
        num_stages=config.stages,
        maxnreg=config.registers,
        **early(),
    )
    return out


def constants(config: Config, rows: Rows, head_dim: int, rope: bool) -> dict[str, int]:
    """`attend`'s compile-time parameters."""
    last = (rows.tokens - 1) % config.block_n + 1
    return {
        "TOKENS": rows.tokens,
        "PATCHES": rows.patches,
        "D": head_dim,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "LAST": max(16, triton.next_power_of_2(last)),
        "SMALL": config.small_rows(rows.tokens),
        "ROPE": rope,
        "HALF_ACCUMULATE": config.half_accumulate,
    }


@triton.jit
def _turned(
    x: tl.tensor, sin: tl.tensor, cos: tl.tensor, patch: tl.tensor, PATCHES: tl.constexpr
) -> tl.tensor:
    """Rows (ROWS, D) of queries or keys, turned where `patch` (ROWS,) is the index of one."""
    ROWS: tl.constexpr = x.shape[0]
    HALF: tl.constexpr = x.shape[1] // 2
    at = patch[:, None] * HALF + tl.arange(0, HALF)[None, :]
    is_patch = ((patch >= 0) & (patch < PATCHES))[:, None]
    s = tl.load(sin + at, mask=is_patch, other=0.0)
    c = tl.load(cos + at, mask=is_patch, other=1.0)
    first, second = tl.split(tl.reshape(x, (ROWS, HALF, 2)).to(tl.float32))
    pairs = tl.join(first * c - second * s, second * c + first * s)
    return tl.reshape(pairs, (ROWS, 2 * HALF)).to(x.dtype)


@triton.jit
def _fold(
    scores: tl.tensor,
    v: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    SCALE: tl.constexpr,
    HALF_ACCUMULATE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """One block of keys into the running softmax: scores (M, N) fp32, v (N, D); SCALE includes log2(e)."""
    now = tl.maximum(highest, tl.max(scores, 1) * SCALE)
    weights = tl.exp2(scores * SCALE - now[:, None])
    shrink = tl.exp2(highest - now)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    weights = weights.to(v.dtype)
    if HALF_ACCUMULATE:
        acc += tl.dot(weights, v, out_dtype=tl.float16)
    else:
        acc = tl.dot(weights, v, acc)
    return now, total, acc


@triton.jit
def _attend(
    blocks: tl.tensor,
    qkv: tl.tensor,
    out: tl.tensor,
    sin: tl.tensor,
    cos: tl.tensor,
    crop: tl.tensor,
    head: tl.tensor,
    query: tl.tensor,
    heads: tl.tensor,
    TOKENS: tl.constexpr,
    PATCHES: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LAST: tl.constexpr,
    ROPE: tl.constexpr,
    HALF_ACCUMULATE: tl.constexpr,
) -> None:
    """Queries from `query` on, of one head and crop; `blocks` describes qkv in blocks (BLOCK_N, D).

    The loop leaves TOKENS % BLOCK_N keys (or BLOCK_N) to a last block, padded to LAST.
    """
    SCALE: tl.constexpr = 1.4426950408889634 / D**0.5
    REST: tl.constexpr = (TOKENS - 1) // BLOCK_N * BLOCK_N
    width = heads * D
    row0 = crop * TOKENS
    patch0 = (crop & 1) * (TOKENS - PATCHES)
    feature = tl.arange(0, D)[None, :]
    base = qkv + row0.to(tl.int64) * (3 * width) + head * D

    rows, keys = query + tl.arange(0, BLOCK_M), REST + tl.arange(0, LAST)
    is_query, is_key = (rows < TOKENS)[:, None], (keys < TOKENS)[:, None]
    q = tl.load(base + rows[:, None] * (3 * width) + feature, mask=is_query, other=0.0)
    at = base + keys[:, None] * (3 * width) + feature
    last_k = tl.load(at + width, mask=is_key, other=0.0)
    last_v = tl.load(at + 2 * width, mask=is_key, other=0.0)
    if ROPE:
        q = _turned(q, sin, cos, rows - patch0, PATCHES)
        last_k = _turned(last_k, sin, cos, keys - patch0, PATCHES)
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)

    for start in range(0, REST, BLOCK_N):
        k = blocks.load([row0 + start, width + head * D])
        v = blocks.load([row0 + start, 2 * width + head * D])
        if ROPE:
            k = _turned(k, sin, cos, start + tl.arange(0, BLOCK_N) - patch0, PATCHES)
        highest, total, acc = _fold(tl.dot(q, k.T), v, highest, total, acc, SCALE, HALF_ACCUMULATE)
    scores = tl.where((keys < TOKENS)[None, :], tl.dot(q, last_k.T), float("-inf"))
    highest, total, acc = _fold(scores, last_v, highest, total, acc, SCALE, HALF_ACCUMULATE)

    result = out + (row0 + rows[:, None]).to(tl.int64) * width + head * D + feature
    tl.store(result, (acc * (1 / total)[:, None]).to(out.dtype.element_ty), mask=is_query)


@triton.jit(do_not_specialize=["pairs", "heads"])
def attend(
    blocks: tl.tensor,
    qkv: tl.tensor,
    out: tl.tensor,
    sin: tl.tensor,
    cos: tl.tensor,
    pairs: int,
    heads: int,
    TOKENS: tl.constexpr,
    PATCHES: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LAST: tl.constexpr,
    SMALL: tl.constexpr,
    ROPE: tl.constexpr,
    HALF_ACCUMULATE: tl.constexpr,
) -> None:
    """`pairs`: crops x heads. SMALL: rows of the small tile of each pair, or 0 if all tiles are alike."""
    let_next_start()
    wait_for_inputs()
    program = tl.program_id(0)
    FULL: tl.constexpr = TOKENS // BLOCK_M if SMALL > 0 else (TOKENS + BLOCK_M - 1) // BLOCK_M
    if SMALL > 0 and program < pairs:
        _attend(
            blocks, qkv, out, sin, cos, program // heads, program % heads, FULL * BLOCK_M, heads,
            TOKENS, PATCHES, D, SMALL, BLOCK_N, LAST, ROPE, HALF_ACCUMULATE,
        )  # fmt: skip
    else:
        if SMALL > 0:
            program -= pairs
        pair, query = program // FULL, program % FULL * BLOCK_M
        _attend(
            blocks, qkv, out, sin, cos, pair // heads, pair % heads, query, heads,
            TOKENS, PATCHES, D, BLOCK_M, BLOCK_N, LAST, ROPE, HALF_ACCUMULATE,
        )  # fmt: skip
