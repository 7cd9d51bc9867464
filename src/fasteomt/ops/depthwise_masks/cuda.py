"""CUDA C++ for Hopper (`hopper_masks.cu`): a large tile a processor, products beside the convolution."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops import hopper
from fasteomt.ops.depthwise_masks import Problem
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target

_FILES = ("hopper_masks.cu", "hopper_masks_ptx.cuh")
SLICE, ROW_BYTES = 64, 128  # channels at a time
TILE_X, STRIP_X, PART_LINES = 16, 4, 4
GROUPS, THREADS = 2, 384  # warpgroups that compute, and the threads with the one that copies
LAST_ROWS = 8
# 128 x 72 + 256 x 216 are the registers that 384 threads start with, 168 each.
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 216, 72
# Columns of a product, by its number in a warpgroup: a thread has half as many sums of each.
_MOST_COLUMNS = {1: 208, 2: 120}
_MOST_STAGES = 4
_MOST_BYTES = 1 << 32  # of a crop's pixels: their places are u32 in the kernel


@dataclass(frozen=True)
class Columns:
    """Of a product: `count`, in `blocks` that have `queries` each, and which of them is the one of ones."""

    blocks: int
    queries: int
    count: int
    ones: int

    @classmethod
    def of(cls, queries: int, most: int) -> Columns:
        if queries < most:
            # A crop's rows are one after the other, that of ones at the end.
            return cls(1, queries, max(2 * LAST_ROWS, _round_up(queries + 1, 8)), queries)
        blocks = math.ceil(queries / (most - LAST_ROWS))
        own = math.ceil(queries / blocks)
        ones = max(LAST_ROWS, _round_up(own, 8))
        return cls(blocks, own, ones + LAST_ROWS, ones)


@dataclass(frozen=True)
class Config:
    """`parts`: products of a warpgroup, each of 4 lines of 16 pixels; `stages`: of the ring."""

    parts: int
    stages: int

    @property
    def lines(self) -> int:
        """Of a warpgroup."""
        return self.parts * PART_LINES

    @property
    def tile_y(self) -> int:
        return GROUPS * self.lines

    @property
    def loaded(self) -> int:
        """Pixels of a tile and their neighbours."""
        return (self.tile_y + 2) * (TILE_X + 2)

    def columns(self, queries: int) -> Columns:
        return Columns.of(queries, _MOST_COLUMNS[self.parts])

    def stage_bytes(self, columns: int) -> int:
        return _round_up((columns + self.loaded) * ROW_BYTES + 9 * SLICE * 4, 1024)

    def shared(self, columns: int) -> int:
        """Dynamic shared memory, bytes, 1024 of them to align the rest."""
        convolved = GROUPS * 2 * 64 * ROW_BYTES
        numbers = TILE_X * self.tile_y + 2 * columns + _round_up(self.loaded, 2)
        barriers = 2 * 8 * self.stages
        return convolved + self.stages * self.stage_bytes(columns) + 4 * numbers + barriers + 1024

    def blocks(self, problem: Problem) -> int:
        grid = problem.grid
        tiles = math.ceil(grid.resolution / TILE_X) * math.ceil(grid.resolution / self.tile_y)
        return grid.crops * tiles * self.columns(problem.queries).blocks


def _round_up(number: int, unit: int) -> int:
    return math.ceil(number / unit) * unit


def unsupported(target: Target, problem: Problem) -> str | None:
    if reason := hopper.unsupported(target, problem.dtype):
        return reason
    if problem.channels % SLICE:
        return f"{problem.channels} channels are no multiple of {SLICE}: use 'fused'"
    if problem.out_dtype not in (torch.float32, problem.dtype):
        return f"results in {problem.out_dtype}: float32 or {problem.dtype} only"
    if problem.grid.resolution**2 * problem.channels * 2 >= _MOST_BYTES:
        return f"crops of {problem.grid.resolution} pixels a side and {problem.channels} channels: too large"
    return None


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """What is worth timing, the best guess first."""
    found = []
    for parts in (2, 1):
        columns = Config(parts, 0).columns(problem.queries).count
        fits = [
            stages
            for stages in range(2, _MOST_STAGES + 1)
            if Config(parts, stages).shared(columns) <= target.shared_memory
        ]
        found += [Config(parts, stages) for stages in fits[-1:]]
    return tuple(sorted(found, key=lambda config: _cycles(target, problem, config)))


def _cycles(target: Target, problem: Problem, config: Config) -> float:
    """A guess: a processor issues four instructions of warps a cycle, and its shared memory passes 128 bytes.

    Filling the ring and writing results take as long as some steps more.
    """
    columns, warps = config.columns(problem.queries).count, 4 * GROUPS
    pixels, read = config.lines * STRIP_X, (config.lines + 2) * (STRIP_X + 2)  # of a warp
    # Of an element 9 products and a square; of two, to round and store them; to read them and to widen each.
    instructions = warps * (20 * pixels + 2 * pixels + 3 * read + 70)
    filled = config.stage_bytes(columns)
    of_warps = warps * ((read + pixels) * ROW_BYTES + 9 * SLICE * 4)
    of_products = GROUPS * config.parts * (64 + columns) * ROW_BYTES
    step = max(instructions / 4, (filled + of_warps + of_products) / 128)
    rounds = math.ceil(config.blocks(problem) / target.processors)
    return rounds * (problem.channels / SLICE + 4) * step


def fold(queries: Tensor, norm_weight: Tensor, norm_bias: Tensor, folded: Tensor, sums: Tensor) -> None:
    from fasteomt.ops.depthwise_masks import folding  # needs Triton, and `run` doesn't

    folding.fold(queries, norm_weight, norm_bias, folded, sums)


def run(
    x: Tensor,
    taps: Tensor,
    eps: float,
    folded: Tensor,
    sums: Tensor,
    out: Tensor,
    grid: Grid,
    *,
    config: Config | None = None,
) -> None:
    """`ops.depthwise_masks` says what it computes; `config`: one of `candidates`, the first if None."""
    problem = Problem(grid, out.shape[1], x.shape[1], x.dtype, out.dtype)
    with torch.cuda.device(x.device):
        launch = _launch(problem, config, torch.cuda.current_device())
        pointers = (each.data_ptr() for each in (x, taps, sums, out))
        job = struct.pack("@4P6i2f0P", *pointers, *launch.numbers, eps, 1 / problem.channels)
        rows = folded.flatten(0, 1)
        maps = [nvrtc.tensor_map(rows, (count, SLICE)) for count in launch.boxes]
        hopper.launch(launch.kernel, launch.blocks, THREADS, maps, job)


@dataclass(frozen=True)
class _Launch:
    """`boxes`: rows of queries that are copied at a time; `numbers`: the integers of the kernel's `Job`."""

    kernel: nvrtc.Kernel
    blocks: int
    boxes: tuple[int, int]
    numbers: tuple[int, ...]


@cache
def _launch(problem: Problem, config: Config | None, device: int) -> _Launch:
    config = config or candidates(Target.of(torch.device("cuda", device)), problem)[0]
    columns, grid = config.columns(problem.queries), problem.grid
    wide = problem.out_dtype == torch.float32
    kernel = _kernel(config, problem.dtype, columns.count, columns.ones, wide, device)
    return _Launch(
        kernel,
        config.blocks(problem),
        (columns.count - LAST_ROWS, LAST_ROWS),
        (grid.crops, grid.side, grid.level, problem.channels, problem.queries, columns.queries),
    )


@cache
def _kernel(
    config: Config, dtype: torch.dtype, columns: int, ones: int, wide: bool, device: int
) -> nvrtc.Kernel:
    """Loaded on `device`, which is the current one."""
    binary = compiled(config, dtype, columns, ones, wide=wide)
    return nvrtc.load(binary, "depthwise_masks", config.shared(columns))


def compiled(
    config: Config, dtype: torch.dtype, columns: int, ones: int, *, wide: bool = True
) -> nvrtc.Binary:
    """The kernel's machine code, for `Columns` of this count; needs no GPU. `wide`: with results in fp32."""
    values: dict[str, object] = {
        "BLOCK_Q": columns,
        "ONES": ones,
        "PARTS": config.parts,
        "STAGES": config.stages,
        "OUT_WIDE": int(wide),
        "CONSUMER_REGISTERS": CONSUMER_REGISTERS,
        "PRODUCER_REGISTERS": PRODUCER_REGISTERS,
        **hopper.operands("BLOCK", "acc", columns // 2),
    }
    return hopper.compiled("fasteomt.ops.depthwise_masks", _FILES, dtype, values)
