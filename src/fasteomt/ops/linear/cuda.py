"""CUDA C++ for Hopper (`hopper_gemm.cu`): fed by TMA, tiles cut where patches are, all epilogues."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product, zip_longest

import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops import hopper
from fasteomt.ops.linear import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = torch.float32
_FILES = ("hopper_gemm.cu", "hopper_gemm_ptx.cuh", "hopper_epilogue.cuh")
BLOCK_M, HALF_M, BLOCK_K, THREADS = 128, 64, 64, 384
_BLOCK_N = (256, 224, 192, 160, 128, 96, 64)
_MAX_RESIDUAL_N = 192  # the stream's old values wait in registers
_ALTERNATE_N = (192, 160, 128, 96)  # a warpgroup has the sums of 128 rows
_CLUSTERS = ((2, 1), (2, 2), (4, 1))  # `cluster_m` and `cluster_n`
_UNIT_N = 32  # columns that are written at a time
_STAGING_BYTES = 8 * 16 * 32 * 2  # of 8 warps, each 16 rows of 32 columns
_MAX_M = 1 << 17  # the table of row tiles is a parameter: at most 16 KiB


@dataclass(frozen=True)
class Config:
    """`cluster_m` blocks of a cluster share what they read of the weights, `cluster_n` what they read of x.

    `lag`: steps by which the second half of a tile's rows runs behind the first, so that one half multiplies
    while the other's results are finished. `alternate`: instead, one warpgroup multiplies a whole tile while
    the other finishes the one before; pays where a block has several tiles.
    """

    block_n: int
    cluster_m: int
    lag: int
    stages: int
    alternate: bool = False
    cluster_n: int = 1

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def shared(self) -> int:
        """Dynamic shared memory, bytes, 1024 of them to align the ring."""
        return self.stages * _stage_bytes(self.block_n) + _STAGING_BYTES + 1024


def _stage_bytes(block_n: int) -> int:
    return (BLOCK_M + block_n) * BLOCK_K * 2


@dataclass(frozen=True)
class Schedule:
    """How tiles are dealt to the clusters of a launch; `hopper_gemm.cu` says how it reads these numbers.

    `row_tiles`: (first row, rows) of each. Clusters take `together` groups of them with each column tile, and
    the `alone` others with a group of column tiles; the last `spread` clusters take these. `time`: of the
    cluster that has most to do, in tiles of 128 rows.
    """

    row_tiles: tuple[tuple[int, int], ...]
    together: int
    alone: int
    column_tiles: int
    clusters: int
    spread: int
    time: float

    @classmethod
    def of(cls, m: int, n: int, rows: Rows | None, config: Config, room: int) -> Schedule:
        """`room`: clusters that run at a time."""
        row_tiles = tuple((rows or Rows(1, m, 0)).tiles(BLOCK_M))
        columns = math.ceil(n / config.block_n)
        together = sum(count > HALF_M for _, count in row_tiles) // config.cluster_m
        alone = [0.5 if count <= HALF_M else 1.0 for _, count in row_tiles[together * config.cluster_m :]]
        groups, single = (
            together * math.ceil(columns / config.cluster_n),
            alone * math.ceil(columns / config.cluster),
        )
        clusters = min(room, groups + len(single))
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
    if problem.m > _MAX_M:
        return f"at most {_MAX_M} rows, not {problem.m}"
    return None


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """What is worth timing, the best guess first."""
    residual = problem.epilogue == "residual"
    lag = 0 if residual else 2

    def ranked(widest: int, lag: int, alternate: bool = False) -> list[Config]:
        sizes = (size for size in (_ALTERNATE_N if alternate else _BLOCK_N) if size <= widest)
        found = [_config(target, size, shape, lag, alternate) for size, shape in product(sizes, _CLUSTERS)]
        return sorted(found, key=lambda config: _cycles(target, problem, config))

    usual = ranked(_MAX_RESIDUAL_N if residual else max(_BLOCK_N), lag)
    widest = 160 if problem.epilogue == "rope" else max(_ALTERNATE_N)  # angles need registers
    taking_turns = [] if residual else ranked(widest, 0, alternate=True)
    both = [each for pair in zip_longest(usual, taking_turns) for each in pair if each is not None]
    alone = [_config(target, each.block_n, (1, 1), each.lag, each.alternate) for each in both[:4]]
    others = [_config(target, each.block_n, (each.cluster_m, each.cluster_n), 2 - lag) for each in usual[:3]]
    return tuple(dict.fromkeys((*both[:6], *others, *alone, *both[6:])))


def _config(
    target: Target, block_n: int, cluster: tuple[int, int], lag: int, alternate: bool = False
) -> Config:
    """With as many stages as fit beside the barriers, two of 8 bytes each."""
    room = target.shared_memory - Config(block_n, 1, lag, 0).shared
    stages = min(8, room // (_stage_bytes(block_n) + 16))
    return Config(block_n, cluster[0], lag, stages, alternate, cluster[1])


def _cycles(target: Target, problem: Problem, config: Config) -> float:
    """A guess: tensor cores do a step of 64 in 4 cycles a column, L2 gives a processor 38 bytes a cycle, and
    filling the ring and finishing a tile take as long as some steps more."""
    schedule = Schedule.of(problem.m, problem.n, None, config, target.processors // config.cluster)
    fetched = (BLOCK_M / config.cluster_n + config.block_n / config.cluster_m) * BLOCK_K * 2
    step = max(4 * config.block_n, fetched / 38)
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
    config: Config | None = None,
) -> None:
    """`ops.linear` says what it computes; `config`: one of `candidates`, the first if None."""
    assert epilogue != "rope" or (rows is not None and rotation is not None)
    turns = rotation if epilogue == "rope" else None
    head_dim = 2 * turns.sin.shape[1] if turns else 0
    problem = Problem(x.shape[0], weight.shape[0], x.shape[1], x.dtype, epilogue, head_dim)
    with torch.cuda.device(x.device):
        launch = _launch(problem, rows, config, torch.cuda.current_device())
        tables = (turns.sin, turns.cos) if turns else (None, None)
        pointers = (0 if each is None else each.data_ptr() for each in (out, bias, scale, *tables))
        job = struct.pack(launch.job, *pointers, out.stride(0), rotated, *launch.numbers)
        share = launch.config.block_n // launch.config.cluster_m
        maps = nvrtc.tensor_map(x, (HALF_M, BLOCK_K)), nvrtc.tensor_map(weight, (share, BLOCK_K))
        hopper.launch(launch.kernel, launch.blocks, THREADS, maps, job)


@dataclass(frozen=True)
class _Launch:
    """`job`: format of the kernel's `Job`, whose integers from the second on are `numbers`."""

    kernel: nvrtc.Kernel
    config: Config
    blocks: int
    job: str
    numbers: tuple[int, ...]


@cache
def _launch(problem: Problem, rows: Rows | None, config: Config | None, device: int) -> _Launch:
    target = Target.of(torch.device("cuda", device))
    config = config or candidates(target, problem)[0]
    table = _table_length(len((rows or Rows(1, problem.m, 0)).tiles(BLOCK_M)))
    kernel = _kernel(config, problem.dtype, problem.epilogue, problem.head_dim, table, device)
    room = kernel.clusters_at_a_time(config.cluster, THREADS)
    schedule = Schedule.of(problem.m, problem.n, rows, config, room)
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
        f"@5Pq{9 + 2 * table}i0q",
        (*tokens, *dealt, *tiles, *padding),
    )


def _table_length(row_tiles: int) -> int:
    """Of the parameter that holds them; few lengths, since each is a kernel of its own."""
    return max(32, 1 << (row_tiles - 1).bit_length())


@cache
def _kernel(
    config: Config, dtype: torch.dtype, epilogue: str, head_dim: int, table: int, device: int
) -> nvrtc.Kernel:
    """Loaded on `device`, which is the current one."""
    return nvrtc.load(compiled(config, dtype, epilogue, head_dim, table), "linear", config.shared)


def compiled(
    config: Config, dtype: torch.dtype, epilogue: str, head_dim: int = 0, table: int = 32
) -> nvrtc.Binary:
    """The kernel's machine code; needs no GPU."""
    values: dict[str, object] = {
        "BLOCK_N": config.block_n,
        "CLUSTER_M": config.cluster_m,
        "CLUSTER_N": config.cluster_n,
        "STAGES": config.stages,
        "LAG": config.lag,
        "ALTERNATE": int(config.alternate),
        "HEAD_DIM": head_dim,
        "MAX_ROW_TILES": table,
        **hopper.operands("BLOCK", "acc", config.block_n // 2),
    }
    if epilogue:
        values[epilogue.upper()] = 1
    return hopper.compiled("fasteomt.ops.linear", _FILES, dtype, values)
