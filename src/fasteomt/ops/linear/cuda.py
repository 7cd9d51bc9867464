"""CUDA C++ for Hopper (`hopper_gemm.cu`): fed by TMA, tiles cut where patches are, all epilogues."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops import hopper
from fasteomt.ops.linear import PART, Folded, HandedOn, Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = torch.float32
_FILES = ("hopper_gemm.cu", "hopper_gemm_ptx.cuh", "hopper_epilogue.cuh", "hopper_moments.cuh")
BLOCK_M, HALF_M, BLOCK_K = 128, 64, 64
_BLOCK_N = (256, 224, 192, 160, 128, 96, 64)
_MAX_RESIDUAL_N = 192  # the stream's old values wait in registers
_ALTERNATE_N = (192, 160, 128, 96)  # a warpgroup has the sums of 128 rows
_HALF_N = (256, 192, 128, 64)  # of tiles of 64 rows
_RESIDENT_N = (128, 96)  # two blocks share the registers
_RESERVED = 1024  # bytes of shared memory that each block takes besides its own
_UNIT_N = 32  # columns that are written at a time
_EXCHANGE_BYTES = 2 * 256 * 8 * 4  # where warpgroups that split K leave sums to one another
_STAGING_BYTES = 8 * 16 * 32 * 2  # of 8 warps, each 16 rows of 32 columns
_MAX_M = 1 << 17  # the table of row tiles is a parameter: at most 16 KiB


@dataclass(frozen=True)
class Config:
    """`cluster`: blocks that share what they read of the weights.

    `lag`: steps by which the second half of a tile's rows runs behind the first, so that one half multiplies
    while the other's results are finished. `alternate`: instead, one warpgroup multiplies a whole tile while
    the other finishes the one before; pays where a block has several tiles. `block_m`: rows of a tile, 128 or
    64; if 64 and not `alternate`, each warpgroup does every other step of K. `resident`: blocks that share a
    processor, each with one tile, so that one multiplies while the other starts or finishes.
    """

    block_n: int
    cluster: int
    lag: int
    stages: int
    alternate: bool = False
    block_m: int = BLOCK_M
    resident: int = 1

    @property
    def split(self) -> bool:
        """Whether warpgroups share K."""
        return self.block_m == HALF_M and not self.alternate

    @property
    def own_n(self) -> int:
        """Columns of which a warpgroup finishes the sums."""
        return self.block_n // 2 if self.split else self.block_n

    @property
    def threads(self) -> int:
        """Of a block."""
        return 384 if self.resident == 1 else 288

    @property
    def shared(self) -> int:
        """Dynamic shared memory, bytes, 1024 of them to align the ring."""
        exchange = _EXCHANGE_BYTES if self.split else 0
        return self.stages * self.stage_bytes + exchange + _STAGING_BYTES + 1024

    @property
    def stage_bytes(self) -> int:
        """What a step of K needs of x and of the weights."""
        return (self.block_m + self.block_n) * BLOCK_K * 2


@dataclass(frozen=True)
class Schedule:
    """How tiles are dealt to the clusters of a launch; `hopper_gemm.cu` says how it reads these numbers.

    `row_tiles`: (first row, rows) of each. Clusters take `together` groups of them with each column tile, and
    the `alone` others with a group of column tiles; the last `spread` clusters take these. `time`: of the
    cluster that has most to do, in whole tiles.
    """

    row_tiles: tuple[tuple[int, int], ...]
    together: int
    alone: int
    column_tiles: int
    clusters: int
    spread: int
    time: float

    @classmethod
    def of(cls, m: int, n: int, rows: Rows | None, config: Config, processors: int) -> Schedule:
        row_tiles = tuple((rows or Rows(1, m, 0)).tiles(config.block_m))
        columns = math.ceil(n / config.block_n)
        together = sum(count > config.block_m - HALF_M for _, count in row_tiles) // config.cluster
        alone = [
            math.ceil(count / HALF_M) / (config.block_m // HALF_M)
            for _, count in row_tiles[together * config.cluster :]
        ]
        groups, single = together * columns, alone * math.ceil(columns / config.cluster)
        if config.resident > 1:  # one item each
            time = (groups * config.cluster + sum(single)) / processors
            return cls(
                row_tiles, together, len(alone), columns, groups + len(single), max(1, len(single)), time
            )
        clusters = min(processors // config.cluster, groups + len(single))
        time, spread = min((_time(groups, single, clusters, each), each) for each in range(1, clusters + 1))
        return cls(row_tiles, together, len(alone), columns, clusters, spread, time)


def _time(groups: int, alone: Sequence[float], clusters: int, spread: int) -> float:
    """Of the slowest cluster: `groups` dealt in turn from the first on, `alone` to the last `spread`."""
    times = [float(len(range(cluster, groups, clusters))) for cluster in range(clusters)]
    for first in range(spread):
        times[-1 - first] += sum(alone[first::spread])
    return max(times)


def unsupported(target: Target, problem: Problem) -> str | None:
    if reason := hopper.unsupported(target, problem.dtype):
        return reason
    if problem.k % 8 or problem.n % _UNIT_N:
        return f"K must be a multiple of 8 and N of {_UNIT_N}, not {problem.k} and {problem.n}"
    if problem.epilogue == "rope" and problem.head_dim % 32:
        return f"heads of a multiple of 32 features, not {problem.head_dim}"
    width = {"": 0, "folded": problem.k, "handed on": problem.n}[problem.norm]
    if width % PART:
        return f"a norm of a multiple of {PART} channels, not {width}"
    if problem.m > _MAX_M:
        return f"at most {_MAX_M} rows, not {problem.m}"
    return None


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """What is worth timing, the best guess first."""
    residual = problem.epilogue == "residual"
    lag = 0 if residual else 2

    def ranked(configs: Iterable[Config]) -> list[Config]:
        return sorted(configs, key=lambda config: _cycles(target, problem, config))

    sizes = [size for size in _BLOCK_N if size <= (_MAX_RESIDUAL_N if residual else max(_BLOCK_N))]
    usual = ranked(_config(target, size, 2, lag) for size in sizes)
    taking_turns = ranked(_config(target, size, 2, alternate=True) for size in _ALTERNATE_N)
    half = ranked(_config(target, size, 2, alternate=True, block_m=HALF_M) for size in _HALF_N)
    split = ranked(_config(target, size, 2, block_m=HALF_M) for size in _HALF_N if problem.k > BLOCK_K)
    sharing = [
        _config(target, size, resident=2) for size in _RESIDENT_N if size == 96 or problem.head_dim <= 64
    ]
    kinds = (split, usual, taking_turns, half) if residual else (half, usual, taking_turns, split)
    best = [each for kind in kinds for each in kind[:2]]
    alone = [replace(each, cluster=1) for each in best]
    rest = [each for kind in kinds for each in kind[2:]]
    others = [replace(each, lag=2 - lag) for each in usual[:2]]
    found = dict.fromkeys((*best, *sharing[:1], *alone, *rest, *others, *sharing))
    return tuple(each for each in found if problem.norm != "handed on" or _hands_on(each))


def _hands_on(config: Config) -> bool:
    """Whether a warpgroup has whole parts of rows, and registers for the stream beside its sums."""
    halves = config.block_m // HALF_M if config.alternate else 1
    return config.own_n % PART == 0 and halves * config.own_n <= 256


def _config(
    target: Target, block_n: int, cluster: int = 1, lag: int = 0, *,
    alternate: bool = False, block_m: int = BLOCK_M, resident: int = 1,
) -> Config:  # fmt: skip
    """With as many stages as fit beside the barriers, two of 8 bytes each."""
    block = (target.shared_memory + _RESERVED) // resident - _RESERVED
    config = Config(block_n, cluster, lag, 0, alternate, block_m, resident)
    stages = min(8, (block - config.shared) // (config.stage_bytes + 16))
    return replace(config, stages=stages - stages % 2 if config.split else stages)


def _cycles(target: Target, problem: Problem, config: Config) -> float:
    """A guess: tensor cores do a step of 64 for 128 rows in 4 cycles a column. Shared memory passes 128 bytes
    a cycle; all are written once, and read by each product of 64 rows. Filling the ring and finishing a tile
    take as long as some steps more."""
    schedule = Schedule.of(problem.m, problem.n, None, config, target.processors)
    halves = config.block_m // HALF_M
    read = halves * (HALF_M + config.block_n) * BLOCK_K * 2
    step = max(2 * halves * config.block_n, (config.stage_bytes + read) / 128)
    return schedule.time * (problem.k / BLOCK_K + 4) * step


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
    norm: Folded | HandedOn | None = None,
    config: Config | None = None,
) -> None:
    """`ops.linear` says what it computes; `config`: one of `candidates`, the first if None."""
    assert epilogue != "rope" or (rows is not None and rotation is not None)
    turns = rotation if epilogue == "rope" else None
    head_dim = 2 * turns.sin.shape[1] if turns else 0
    kind = "folded" if isinstance(norm, Folded) else "handed on" if norm else ""
    problem = Problem(x.shape[0], weight.shape[0], x.shape[1], x.dtype, epilogue, head_dim, kind)
    with torch.cuda.device(x.device):
        launch = _launch(problem, rows, config, torch.cuda.current_device())
        tables = (turns.sin, turns.cos) if turns else (None, None)
        moments = (norm and norm.parts, norm.sums if isinstance(norm, Folded) else None)
        copy = norm.copy if isinstance(norm, HandedOn) else None
        given = (out, bias, scale, *tables, copy, *moments)
        pointers = (0 if each is None else each.data_ptr() for each in given)
        of_norm = (norm.parts.shape[1] if norm else 0, norm.eps if isinstance(norm, Folded) else 0.0)
        job = struct.pack(
            launch.job, *pointers, out.stride(0), rotated, *launch.numbers, *of_norm, *launch.tiles
        )
        share = launch.config.block_n // launch.config.cluster
        maps = nvrtc.tensor_map(x, (HALF_M, BLOCK_K)), nvrtc.tensor_map(weight, (share, BLOCK_K))
        hopper.launch(launch.kernel, launch.blocks, launch.config.threads, maps, job)


@dataclass(frozen=True)
class _Launch:
    """`job`: format of the kernel's `Job`, whose integers from the second on are `numbers`; it ends in
    `tiles`."""

    kernel: nvrtc.Kernel
    config: Config
    blocks: int
    job: str
    numbers: tuple[int, ...]
    tiles: tuple[int, ...]


@cache
def _launch(problem: Problem, rows: Rows | None, config: Config | None, device: int) -> _Launch:
    target = Target.of(torch.device("cuda", device))
    config = config or candidates(target, problem)[0]
    schedule = Schedule.of(problem.m, problem.n, rows, config, target.processors)
    table = _table_length(schedule)
    kernel = _kernel(config, (problem.dtype, problem.epilogue, problem.head_dim, problem.norm), table, device)
    tokens = (rows.patches, rows.extras) if rows else (problem.m, 0)
    dealt = (
        problem.n,
        schedule.column_tiles,
        math.ceil(problem.k / BLOCK_K),
        schedule.together,
        schedule.alone,
        schedule.spread,
    )
    tiles = [number for tile in schedule.row_tiles for number in tile]
    padding = [0] * (2 * table - len(tiles))
    return _Launch(
        kernel,
        config,
        schedule.clusters * config.cluster,
        f"@8Pq10if{2 * table}i0q",
        (*tokens, *dealt),
        (*tiles, *padding),
    )


def _table_length(schedule: Schedule) -> int:
    """Of the parameter that holds the row tiles; few lengths, since each is a kernel of its own."""
    return max(32, 1 << (len(schedule.row_tiles) - 1).bit_length())


@cache
def _kernel(config: Config, kind: tuple[torch.dtype, str, int, str], table: int, device: int) -> nvrtc.Kernel:
    """Loaded on `device`, which is the current one."""
    return nvrtc.load(compiled(config, *kind, table=table), "linear", config.shared)


def compiled(
    config: Config, dtype: torch.dtype, epilogue: str, head_dim: int = 0, norm: str = "", *, table: int = 32
) -> nvrtc.Binary:
    """The kernel's machine code; needs no GPU."""
    values: dict[str, object] = {
        "BLOCK_N": config.block_n,
        "CLUSTER": config.cluster,
        "STAGES": config.stages,
        "LAG": config.lag,
        "ALTERNATE": int(config.alternate),
        "HALVES": config.block_m // HALF_M,
        "RESIDENT": config.resident,
        "FOLDED": int(norm == "folded"),
        "HANDS_ON": int(norm == "handed on"),
        "HEAD_DIM": head_dim,
        "MAX_ROW_TILES": table,
        **hopper.operands("BLOCK", "acc", config.block_n // 2),
    }
    if epilogue:
        values[epilogue.upper()] = 1
    return hopper.compiled("fasteomt.ops.linear", _FILES, dtype, values)
