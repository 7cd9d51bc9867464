"""CUDA C++ for Hopper (`hopper_attention.cu`): fed by TMA, exponentials beside products, one round of blocks.

A block has up to `Config.warpgroups` x `Config.units` x 64 queries. For ViT-L and two crops of 1024 patches
and 5 extras, 4 x 1 make 128 blocks for an H200's 132 processors, which run at once. The 5 queries left over
take no block of their own: extra warps in the blocks of each head and crop do them, each for some keys.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fasteomt.compat import nvrtc
from fasteomt.ops import hopper
from fasteomt.ops.attention import Problem
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

WRITES_OUT = True
HEAD_DIM, UNIT = 64, 64
_FILES = (
    "hopper_attention.cu", "hopper_attention_ptx.cuh", "hopper_softmax.cuh", "hopper_extra_warps.cuh"
)  # fmt: skip
_ROW_BYTES = 2 * HEAD_DIM
_EXTRA_QUERIES = 8  # of the extra warps
_EXTRA_WARPS, _EXTRA_BYTES = 3, 8 * 512  # of a block; what each keeps in shared memory
_PARTIAL = (HEAD_DIM // 16 + 1) * 32  # 16 bytes each, that a block's leave
_BARRIER_BYTES = 8
_STEP_OF_KEYS = 16  # that products of weights and values sum over
_REGISTERS, _MAX_REGISTERS = 65536, 240  # of a processor, of a thread that may ask for more
_RING_BYTES = 112 * 1024  # at most: more would be ahead of what is used, and start later
_PROCESSOR_SHARED = 228 * 1024  # of which each block takes 1024 bytes more than it asks for
# Weights may reach 2 to this power, see `hopper_attention.cu`.
_SLACK = {torch.float16: 15, torch.bfloat16: 48}
_MAX_ROWS = 1 << 24  # rows are int32 in the kernel, and so are the offsets within a crop


@dataclass(frozen=True)
class Config:
    """`warpgroups`: of a block, at most; `block_n`: keys at a time; `units`: of 64 queries, that a warpgroup
    has at most, 1 or 2 that take turns."""

    warpgroups: int
    block_n: int
    units: int = 1

    @property
    def threads(self) -> int:
        """With the warpgroup that copies."""
        return 128 * (self.warpgroups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Of the threads that multiply and of the others, out of those that all of them start with."""
        pool = self.launch_registers * (self.warpgroups + 1)
        # Of extra warps, beside the thread that copies. Four warpgroups with 64 keys need the rest.
        others = 32 if self.warpgroups == 4 else 40
        each = min(_MAX_REGISTERS, (pool - others) // self.warpgroups // 8 * 8)
        return each, min(self.launch_registers, pool - self.warpgroups * each)

    @property
    def launch_registers(self) -> int:
        """Of each thread at the start: the compiler's limit, which `__launch_bounds__` sets."""
        return min(_MAX_REGISTERS, _REGISTERS // self.threads // 8 * 8)

    def stages(self, last: int) -> int:
        """Of the ring: as many as fit, but no more than help. `last`: of `Schedule`."""
        room = min(_RING_BYTES, _PROCESSOR_SHARED - 1024 - self._shared(last, 0))
        return room // (self._shared(last, 1) - self._shared(last, 0))

    def shared(self, last: int) -> int:
        """Dynamic shared memory, bytes, 1024 of them to align the ring."""
        return self._shared(last, self.stages(last))

    def _shared(self, last: int, stages: int) -> int:
        tiles = (self.warpgroups * self.units * UNIT + stages * max(self.block_n, last)) * _ROW_BYTES
        return tiles + _EXTRA_WARPS * _EXTRA_BYTES + (2 * stages + 1) * _BARRIER_BYTES + 1024


# The likely best first, where they need equally long by `_time`. Fewer than 64 keys at a time are for want of
# registers: their scores wait for shared memory, of which every product reads the queries anew.
_CONFIGS = (
    Config(4, 64),
    Config(2, 64, 2),
    Config(4, 48),
    Config(3, 96),
    Config(2, 160),
    Config(2, 128),
    Config(5, 32),
)
# The compiler keeps what tensor cores work on from this register on.
_FIRST_REGISTER = 24
_CANDIDATES, _WORTH_TIMING = 3, 1.5  # how many, and how much longer than the best they may need


@dataclass(frozen=True)
class Schedule:
    """Who does what of a head and crop; `hopper_attention.cu` says how it reads these numbers.

    `units`: of 64 queries, dealt evenly to `tiles` blocks; `extra`: queries of these blocks' extra warps.
    `steps`: blocks of keys, of which the first has `rest`, padded to `last`: those that fill no block, and a
    block of them if they are few.
    """

    units: int
    tiles: int
    extra: int
    steps: int
    rest: int
    last: int

    @classmethod
    def of(cls, tokens: int, config: Config) -> Schedule:
        units, extra = divmod(tokens, UNIT)
        if extra > _EXTRA_QUERIES or not units:
            units, extra = units + 1, 0
        rest = (tokens - 1) % config.block_n + 1
        last = math.ceil(rest / _STEP_OF_KEYS) * _STEP_OF_KEYS
        steps = math.ceil(tokens / config.block_n)
        if steps > 1 and last == _STEP_OF_KEYS:
            steps, rest, last = steps - 1, rest + config.block_n, last + config.block_n
        return cls(units, math.ceil(units / (config.warpgroups * config.units)), extra, steps, rest, last)

    def units_of(self, tile: int) -> range:
        """As the kernel deals them."""
        return range(tile * self.units // self.tiles, (tile + 1) * self.units // self.tiles)


def unsupported(target: Target, problem: Problem) -> str | None:
    if reason := hopper.unsupported(target, problem.dtype):
        return reason
    if problem.head_dim != HEAD_DIM:
        return f"head_dim {problem.head_dim}: {HEAD_DIM} only"
    if problem.rope:
        return "turns nothing: run the op 'rope' before it"
    if problem.half_accumulate:
        return "half_accumulate: use 'fused'"
    if problem.rows.tokens < _STEP_OF_KEYS:
        return f"at least {_STEP_OF_KEYS} tokens, not {problem.rows.tokens}"
    if problem.rows.total > _MAX_ROWS:
        return f"at most {_MAX_ROWS} rows, not {problem.rows.total}"
    return None


def candidates(target: Target, problem: Problem) -> tuple[Config, ...]:
    """What is worth timing, the best guess first."""
    times = {each: _time(target, problem, each) for each in _CONFIGS if _fits(each, problem.rows.tokens)}
    longest = _WORTH_TIMING * min(times.values())
    found = sorted((config for config in times if times[config] < longest), key=times.__getitem__)
    return tuple(found[:_CANDIDATES])


def _fits(config: Config, tokens: int) -> bool:
    """Whether a thread has registers for the step after the first: its scores, the first one's weights, and
    the result."""
    schedule = Schedule.of(tokens, config)
    most = max(config.block_n, schedule.last)
    needed = config.units * (config.block_n // 2 + most // 4 + HEAD_DIM // 2)
    return _FIRST_REGISTER + needed < config.registers[0]


def _time(target: Target, problem: Problem, config: Config) -> int:
    """Of the processor that has most to do, in units of 64 queries: a guess, all units taken as alike."""
    schedule = Schedule.of(problem.rows.tokens, config)
    blocks = problem.rows.crops * problem.heads * schedule.tiles
    return math.ceil(blocks / target.processors) * math.ceil(schedule.units / schedule.tiles)


def room_for(problem: Problem, device: torch.device) -> Tensor:
    """Where blocks gather what their extra warps have, zeros: enough for any configuration. Launches that may
    run at the same time need one each."""
    counters, blocks = _room(problem)
    return torch.zeros(counters + blocks * _PARTIAL * 4, dtype=torch.int32, device=device)


@cache
def _room(problem: Problem) -> tuple[int, int]:
    """Counters, one for each head and crop, up to where the rest is aligned; and blocks with extra warps."""
    pairs, tokens = problem.rows.crops * problem.heads, problem.rows.tokens
    schedules = [Schedule.of(tokens, config) for config in _CONFIGS if _fits(config, tokens)]
    return math.ceil(pairs / 4) * 4, pairs * max(each.tiles if each.extra else 0 for each in schedules)


def run(
    qkv: Tensor,
    out: Tensor,
    heads: int,
    rows: Rows,
    rotation: Rotation | None = None,
    config: Config | None = None,
    room: Tensor | None = None,
) -> Tensor:
    """Write into `out` (rows.total, heads D), contiguous, and return it; qkv is contiguous. `config`: one of
    `candidates`, the first if None; `room`: of `room_for`, a new one if None."""
    assert rotation is None and qkv.is_contiguous() and out.is_contiguous()
    with torch.cuda.device(qkv.device):
        problem = Problem(rows, heads, out.shape[1] // heads, qkv.dtype, out_dtype=out.dtype)
        launch = _launch(problem, config, torch.cuda.current_device())
        room = room_for(problem, qkv.device) if room is None else room
        counters, _ = _room(problem)
        pointers = out.data_ptr(), qkv.data_ptr(), room[counters:].data_ptr(), room.data_ptr()
        job = struct.pack("@4P6i0P", *pointers, *launch.numbers)
        maps = [nvrtc.tensor_map(qkv, (size, HEAD_DIM)) for size in launch.boxes]
        hopper.launch(launch.kernel, launch.blocks, launch.threads, maps, job)
    return out


@dataclass(frozen=True)
class _Launch:
    """`boxes`: rows of queries, of keys and of the first keys that are copied at a time; `numbers`: the
    integers of the kernel's `Job`."""

    kernel: nvrtc.Kernel
    blocks: int
    threads: int
    boxes: tuple[int, int, int]
    numbers: tuple[int, ...]


@cache
def _launch(problem: Problem, config: Config | None, device: int) -> _Launch:
    """The kernel is loaded on `device`, which is the current one."""
    config = config or candidates(Target.of(torch.device("cuda", device)), problem)[0]
    tokens, heads = problem.rows.tokens, problem.heads
    plan = Schedule.of(tokens, config)
    kernel = _kernel(config, problem.dtype, plan.last, plan.extra > 0, problem.out_dtype, device)
    return _Launch(
        kernel,
        problem.rows.crops * heads * plan.tiles,
        config.threads,
        (UNIT, config.block_n, plan.rest),
        (tokens, heads, plan.tiles, plan.units, plan.steps, plan.rest),
    )


@cache
def _kernel(
    config: Config, dtype: torch.dtype, last: int, extra: bool, out_dtype: torch.dtype | None, device: int
) -> nvrtc.Kernel:
    return nvrtc.load(compiled(config, dtype, last, extra, out_dtype), "attention", config.shared(last))


def compiled(
    config: Config, dtype: torch.dtype, last: int, extra: bool, out_dtype: torch.dtype | None = None
) -> nvrtc.Binary:
    """The kernel's machine code for `Schedule.last` keys in the first block, with or without extra warps;
    needs no GPU."""
    registers, others = config.registers
    values: dict[str, object] = {
        "HEAD_DIM": HEAD_DIM,
        "OUT_TYPE": hopper.TYPES[out_dtype or dtype],
        "WARPGROUPS": config.warpgroups,
        "UNITS": config.units,
        "BLOCK_N": config.block_n,
        "LAST": last,
        "STAGES": config.stages(last),
        "EXTRA": int(extra),
        "EXTRA_WARPS": _EXTRA_WARPS,
        "EXTRA_BYTES": _EXTRA_BYTES,
        "PARTIAL": _PARTIAL,
        "CONSUMER_REGISTERS": registers,
        "PRODUCER_REGISTERS": others,
        "SLACK": _SLACK[dtype],
        **hopper.operands("BLOCK", "scores", config.block_n // 2),
        **hopper.operands("LAST", "scores", last // 2),
        **hopper.operands("OUT", "out", HEAD_DIM // 2, 4),
    }
    return hopper.compiled("fasteomt.ops.attention", _FILES, dtype, values)
