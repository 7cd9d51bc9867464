"""CUDA C++ for Hopper (`hopper_gemm.cu`): fed by TMA, all epilogues."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops import hopper
from fasteomt.ops.linear import Normed, Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BIAS_DTYPE: torch.dtype | None = torch.float32
_FILES = ("hopper_gemm.cu", "hopper_gemm_ptx.cuh", "hopper_epilogue.cuh", "hopper_norm.cuh")
HALF_M, BLOCK_K = 64, 64
# A warpgroup has the sums of a whole tile in registers: columns by the rows of a tile.
_BLOCK_N = {64: (256, 224, 192, 160, 128, 96, 64), 128: (192, 160, 128, 96, 64)}
# Of tiles that warpgroups split: half their rows, or half their columns, which are units.
_SPLIT_N = {64: (256, 192, 128), 128: (256, 224, 192, 160, 128)}
_UNIT_N = 32  # columns that are written at a time
_THREADS = 384
_STAGING_BYTES = 8 * 16 * 32 * 2  # of 8 warps, each 16 rows of 32 columns
_HEAD_DIMS = (32, 64, 128)


@dataclass(frozen=True)
class Config:
    """Tiles of `block_m` rows, 64 or 128, and `block_n` columns; `cluster`: blocks that share what they read
    of the weights; `stages` of the ring, a stage for each 64 of K; `split`: both warpgroups work on a tile,
    each on 64 rows of it or, if it has no more, on half of its columns, instead of taking turns."""

    block_m: int
    block_n: int
    cluster: int
    stages: int
    split: bool = False

    @property
    def own_n(self) -> int:
        """Columns that a warpgroup has of a tile."""
        return self.block_n // 2 if self.split and self.block_m == HALF_M else self.block_n

    @property
    def shared(self) -> int:
        """Dynamic shared memory, bytes, 1024 of them to align the ring."""
        return self.stages * self.stage_bytes + _STAGING_BYTES + 1024

    @property
    def stage_bytes(self) -> int:
        """What a step of K needs of x and of the weights."""
        return (self.block_m + self.block_n) * BLOCK_K * 2


@dataclass(frozen=True)
class Schedule:
    """How tiles are dealt to the clusters of a launch; `hopper_gemm.cu` says how it reads these numbers, and
    in which order tiles must be where blocks wait for one another (`waits`).

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
    def of(cls, m: int, n: int, config: Config, processors: int, *, waits: bool = False) -> Schedule:
        size = config.block_m
        row_tiles = tuple((first, min(size, m - first)) for first in range(0, m, size))
        columns = math.ceil(n / config.block_n)
        assert not waits or config.cluster == 1
        together = sum(count > size - HALF_M for _, count in row_tiles) // config.cluster
        alone = [
            math.ceil(count / HALF_M) / (size // HALF_M)
            for _, count in row_tiles[together * config.cluster :]
        ]
        groups, single = together * columns, alone * math.ceil(columns / config.cluster)
        if waits:
            single = [time for time in alone for _ in range(columns)]
        clusters = min(processors // config.cluster, groups + len(single))
        # Who waits for a row's other columns has none of them.
        fewest = columns if waits else 1
        assert fewest <= clusters
        time, spread = min(
            (_time(groups, single, clusters, each), each) for each in range(fewest, clusters + 1)
        )
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
    if problem.epilogue == "rope" and problem.head_dim not in _HEAD_DIMS:
        return f"heads of 32, 64 or 128 features, not {problem.head_dim}"
    if problem.epilogue == "norm" and problem.n > _BLOCK_N[HALF_M][0] * target.processors:
        return f"{problem.n} columns are too many for {target.processors} processors to normalise"
    return None


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """What is worth timing, the best guess first."""
    heads = problem.head_dim if problem.epilogue == "rope" else 1
    clusters = (1,) if problem.epilogue == "norm" else (1, 2)
    found = [
        _config(target, block_m, block_n, cluster, split)
        for split, sizes in ((False, _BLOCK_N), (True, _SPLIT_N))
        for block_m, every in sizes.items()
        for block_n in every
        for cluster in clusters
    ]
    columns = target.processors if problem.epilogue == "norm" else problem.n
    fitting = (
        config
        for config in found
        if config.own_n % heads == 0 and math.ceil(problem.n / config.block_n) <= columns
    )
    return tuple(sorted(fitting, key=lambda config: _cycles(target, problem, config)))


def _config(target: Target, block_m: int, block_n: int, cluster: int, split: bool) -> Config:
    """With as many stages as fit beside the barriers, two of 8 bytes each."""
    config = Config(block_m, block_n, cluster, 0, split)
    stages = min(8, (target.shared_memory - config.shared) // (config.stage_bytes + 16))
    return replace(config, stages=stages)


def _cycles(target: Target, problem: Problem, config: Config) -> float:
    """A guess: tensor cores do a step of 64 for 64 rows in 2 cycles a column, if shared memory, where all is
    written once and read by each product of 64 rows, passes 140 bytes a cycle. A tile takes two steps more
    than it has, and results are finished while nobody multiplies, at 16 cycles for each column of 64 rows:
    those of the last tile, or of all that warpgroups split. Clusters lose a little where their
    blocks wait for one another. Fitted to what an H200 found best."""
    waits = problem.epilogue == "norm"
    schedule = Schedule.of(problem.m, problem.n, config, target.processors, waits=waits)
    halves = config.block_m // HALF_M
    read = halves * (HALF_M * config.block_n // config.own_n + config.block_n) * BLOCK_K * 2
    step = max(2 * halves * config.block_n, (config.stage_bytes + read) / 140)
    products = schedule.time * (problem.k / BLOCK_K + 2) * step * (1 + 0.05 * (config.cluster - 1))
    finish = 16 * halves * config.block_n
    return products + (schedule.time if config.split else 1) * finish


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
    norm: Normed | None = None,
    config: Config | None = None,
) -> None:
    """`ops.linear` says what it computes; `config`: one of `candidates`, the first if None."""
    assert epilogue != "rope" or (rows is not None and rotation is not None)
    assert (epilogue == "norm") == (norm is not None)
    turns = rotation if epilogue == "rope" else None
    head_dim = 2 * turns.sin.shape[1] if turns else 0
    adds = epilogue in ("residual", "norm")
    rounded = x.dtype if adds else out.dtype
    problem = Problem(x.shape[0], weight.shape[0], x.shape[1], x.dtype, epilogue, head_dim, rounded)
    with torch.cuda.device(x.device):
        launch = _launch(problem, rows, config, torch.cuda.current_device())
        tables = (turns.sin, turns.cos) if turns else (None, None)
        normed = (norm.out, norm.weight, norm.bias, norm.parts) if norm else (None, None, None, None)
        pointers = (0 if each is None else each.data_ptr() for each in (out, bias, scale, *tables, *normed))
        eps = norm.eps if norm else 0.0
        job = struct.pack("@9Pq10if0q", *pointers, out.stride(0), rotated, *launch.numbers, eps)
        share = launch.config.block_n // launch.config.cluster
        maps = [nvrtc.tensor_map(x, (HALF_M, BLOCK_K)), nvrtc.tensor_map(weight, (share, BLOCK_K))]
        # The stream's values are copied as they are, each as two of 16 bits.
        maps.append(nvrtc.tensor_map(out.view(x.dtype), (HALF_M, 2 * _UNIT_N)) if adds else maps[0])
        hopper.launch(launch.kernel, launch.blocks, _THREADS, maps, job)


@dataclass(frozen=True)
class _Launch:
    """`numbers`: the integers of the kernel's `Job` from the second on."""

    kernel: nvrtc.Kernel
    config: Config
    blocks: int
    numbers: tuple[int, ...]


@cache
def _launch(problem: Problem, rows: Rows | None, config: Config | None, device: int) -> _Launch:
    target = Target.of(torch.device("cuda", device))
    config = config or candidates(target, problem)[0]
    waits = problem.epilogue == "norm"
    schedule = Schedule.of(problem.m, problem.n, config, target.processors, waits=waits)
    kernel = _kernel(config, (problem.dtype, problem.epilogue, problem.head_dim, problem.out_dtype), device)
    tokens = (rows.patches, rows.extras) if rows else (problem.m, 0)
    dealt = (
        problem.m,
        problem.n,
        schedule.column_tiles,
        math.ceil(problem.k / BLOCK_K),
        schedule.together,
        schedule.alone,
        schedule.spread,
    )
    return _Launch(kernel, config, schedule.clusters * config.cluster, (*tokens, *dealt))


@cache
def _kernel(
    config: Config, kind: tuple[torch.dtype, str, int, torch.dtype | None], device: int
) -> nvrtc.Kernel:
    """Loaded on `device`, which is the current one."""
    return nvrtc.load(compiled(config, *kind), "linear", config.shared)


def compiled(
    config: Config,
    dtype: torch.dtype,
    epilogue: str,
    head_dim: int = 0,
    out_dtype: torch.dtype | None = None,
) -> nvrtc.Binary:
    """The kernel's machine code; needs no GPU."""
    values: dict[str, object] = {
        "BLOCK_N": config.block_n,
        "OUT_TYPE": hopper.TYPES[out_dtype or dtype],
        "HALVES": config.block_m // HALF_M,
        "SPLIT": int(config.split),
        "OWN_N": config.own_n,
        "CLUSTER": config.cluster,
        "STAGES": config.stages,
        "GELU": int(epilogue == "gelu"),
        "ROPE": int(epilogue == "rope"),
        "RESIDUAL": int(epilogue in ("residual", "norm")),
        "NORM": int(epilogue == "norm"),
        "HEAD_DIM": head_dim,
        **hopper.operands("OWN", "acc", config.own_n // 2),
    }
    return hopper.compiled("fasteomt.ops.linear", _FILES, dtype, values)
