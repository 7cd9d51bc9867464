"""One Triton kernel for all epilogues (`fused_kernel`): persistent, fed by TMA, tiles cut where patches are.

Programs stay, one or two a processor, and take tiles of BLOCK_M x BLOCK_N in turns. Rows that don't fill a
tile, a few per pair of crops (`ops.rows`), become tail tiles of TAIL_M rows, the smallest that wgmma knows.
They come last, and go to the programs that have one tile less than the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fasteomt.ops.early import early
from fasteomt.ops.linear import Problem
from fasteomt.ops.linear.fused_kernel import linear_kernel
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = torch.float32
TAIL_M = 64
GROUP = 16  # tiles of rows that are worked on together, so that their x and weight stay in L2


@dataclass(frozen=True)
class Config:
    """How a tile is computed; `resident`: programs that share a processor."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    resident: int = 1

    def shared(self, problem: Problem) -> int:
        """Bytes of shared memory: operands, what leaves, and barriers."""
        operands = (self.block_m + self.block_n) * self.block_k * 2 * self.stages
        width = 4 if problem.epilogue == "residual" else 2
        return operands + self.block_m * self.part(problem) * width + 64

    def part(self, problem: Problem) -> int:
        """Columns that leave at once: 128 bytes, the widest box that TMA swizzles, but whole heads."""
        columns = {"residual": 32, "rope": max(64, problem.head_dim)}.get(problem.epilogue, 64)
        return min(columns, self.block_n)


@dataclass(frozen=True)
class Tiling:
    """How rows become tiles, as the kernel is told.

    Per crop `full` tiles, and `tails` tail tiles per pair of crops, in each of `columns` tiles of columns.
    Tail tiles go in turns to `helpers` programs, from number `first_helper` on.
    """

    rows: Rows
    full: int
    tails: int
    columns: int
    programs: int
    first_helper: int
    helpers: int

    @classmethod
    def of(cls, m: int, n: int, rows: Rows | None, config: Config, processors: int) -> Tiling:
        size = config.block_m
        if rows is None or rows.patches % size:
            rows = Rows(1, m - m % size, m % size)
        full, columns = rows.patches // size, triton.cdiv(n, config.block_n)
        tails = triton.cdiv(min(rows.crops, 2) * rows.extras, TAIL_M)
        all_full = full * rows.crops * columns
        all_tails = tails * triton.cdiv(rows.crops, 2) * columns
        programs = min(all_full + all_tails, processors * config.resident)
        # A tail tile costs half a full one or less, so those who have time for one have time for two.
        first = all_full % programs
        idle = programs - first
        helpers = idle if first and all_tails <= 2 * idle else programs
        return cls(rows, full, tails, columns, programs, first, helpers)


# For the shared memory of sm_90, then for that of its smaller relatives. 128 x 256 sums need the registers
# of 8 warps; of two programs one can finish its tile while the other multiplies.
_CONFIGS = (
    Config(128, 256, 64, 8, 4),
    Config(128, 256, 64, 8, 3),
    Config(256, 128, 64, 8, 4),
    Config(128, 128, 64, 8, 5),
    Config(128, 128, 64, 4, 3, resident=2),
    Config(128, 128, 128, 8, 3),
    Config(64, 256, 64, 4, 4),
    Config(128, 64, 64, 4, 4, resident=2),
    Config(64, 128, 64, 4, 4, resident=2),
    Config(64, 64, 64, 4, 5, resident=2),
)
_SMALL_CONFIGS = (
    Config(128, 128, 64, 8, 2),
    Config(128, 128, 32, 8, 4),
    Config(128, 64, 64, 4, 3),
    Config(64, 128, 64, 4, 3),
    Config(128, 64, 32, 4, 3, resident=2),
    Config(64, 64, 64, 4, 2, resident=2),
)


def unsupported(target: Target, problem: Problem) -> str | None:
    if target.sm < 90:
        return "needs sm_90 or newer, for its tensor memory accelerator"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"{problem.dtype}: float16 or bfloat16 only"
    if problem.n % 16 or problem.k % 16:
        return f"N and K must be multiples of 16, not {problem.n} and {problem.k}"
    if problem.epilogue == "norm":
        return "no LayerNorm of whole rows: compute it in an op of its own"
    if problem.epilogue == "rope" and problem.head_dim not in (16, 32, 64, 128):
        return f"head_dim {problem.head_dim}: 16, 32, 64 or 128 only"
    return None


@cache
def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """What fits there and is worth timing, the best guess first."""

    def fits(config: Config) -> bool:
        # A processor has 1 KiB more than a program can have, and each program costs 1 KiB.
        shared = (config.shared(problem) + 1024) * config.resident
        return shared <= target.shared_memory + 1024 and config.block_n >= problem.head_dim

    configs = _CONFIGS if target.shared_memory > 200_000 else _SMALL_CONFIGS
    return tuple(sorted(filter(fits, configs), key=lambda config: _cycles(config, target, problem)))


def _cycles(config: Config, target: Target, problem: Problem) -> float:
    """A guess of how long a processor is busy; it only has to rank.

    Products go at 2048 a cycle, less what tiles of little reuse lose by reading shared memory. Filling the
    pipeline and writing the output costs 2500 cycles a tile, unless another program has work meanwhile.
    """
    columns = triton.cdiv(problem.n, config.block_n)
    halves = columns * (2 * (problem.m // config.block_m) + triton.cdiv(problem.m % config.block_m, TAIL_M))
    processors = 2 * max(target.processors, 1)
    reuse = 2 / (1 / config.block_m + 1 / config.block_n)
    efficiency = 0.55 + 0.2 * math.log2(reuse / 64)
    products = config.block_m * config.block_n * problem.k
    work = triton.cdiv(halves, processors) * products / (2048 * efficiency)
    return work + triton.cdiv(halves, processors * config.resident) * 2500


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    rows: Rows | None = None,
    epilogue: str = "",
    rotation: Rotation | None = None,
    rotated: int = 0,
    scale: Tensor | None = None,
    config: Config | None = None,
) -> None:
    """See `ops.linear`; `config`: one of `candidates`, by default the first."""
    (m, k), n = x.shape, weight.shape[0]
    target = Target.of(x.device)
    head_dim = 2 * rotation.sin.shape[1] if rotation and epilogue == "rope" else 0
    problem = Problem(m, n, k, x.dtype, epilogue, head_dim)
    config = config or candidates(target, problem)[0]
    tiling = Tiling.of(m, n, rows, config, max(target.processors, 1))
    cut, part = tiling.rows, config.part(problem)
    rows = rows or cut
    linear_kernel[(tiling.programs,)](
        TensorDescriptor.from_tensor(x, [config.block_m, config.block_k]),
        TensorDescriptor.from_tensor(x, [TAIL_M, config.block_k]),
        TensorDescriptor.from_tensor(weight, [config.block_n, config.block_k]),
        TensorDescriptor.from_tensor(out, [config.block_m, part]),
        out, bias, scale, rotation and rotation.sin, rotation and rotation.cos,
        m, n, k, rotated, rows.tokens, rows.extras, rows.patches,
        cut.tokens, cut.extras, cut.patches, cut.crops, tiling.full, tiling.tails, tiling.columns,
        tiling.first_helper, tiling.helpers,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, TAIL_M=TAIL_M, GROUP=GROUP,
        PART=part, EPILOGUE=epilogue, HEAD_DIM=head_dim, num_warps=config.warps, num_stages=config.stages,
        **early(),
    )  # fmt: skip
