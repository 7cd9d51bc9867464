"""The Hopper GEMM compiled without a GPU: its instructions, no spills; and its tiles: each output once."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from hopper_sass import needs_nvrtc, sass

from fasteomt.ops.linear import Problem, cuda
from fasteomt.ops.linear.cuda import Config, Schedule, candidates, unsupported
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BF16, FP16 = torch.bfloat16, torch.float16
H200 = Target.named("sm_90")
TWO_CROPS, JOINT = Rows(2, 1024, 5), Rows(2, 1024, 105)
PROBLEMS = {
    "L qkv": Problem(2058, 3072, 1024, BF16, "rope", 64),
    "L proj": Problem(2058, 1024, 1024, BF16, "residual"),
    "L fc1": Problem(2058, 4096, 1024, FP16, "gelu"),
    "L fc2": Problem(2058, 1024, 4096, BF16, "residual"),
    "L proj, norm": Problem(2058, 1024, 1024, BF16, "norm"),
    "B fc2, norm": Problem(2058, 768, 3072, FP16, "norm"),
    "L fc2, joint, norm": Problem(2258, 1024, 4096, FP16, "norm"),
    "L fc1, joint": Problem(2258, 4096, 1024, BF16, "gelu"),
    "B qkv": Problem(2058, 2304, 768, FP16, "rope", 64),
    "B fc1": Problem(2058, 3072, 768, BF16, "gelu"),
    "T proj": Problem(2058, 192, 192, FP16, "residual"),
    "7B qkv": Problem(2058, 12288, 4096, BF16, "rope", 128),
    "patches": Problem(2048, 1024, 768, BF16),
}


@needs_nvrtc
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("name", PROBLEMS)
def test_compiles_to_hopper_instructions_with_sums_in_registers(
    name: str, block_m: int, split: bool, cluster: int
) -> None:
    problem = PROBLEMS[name]
    assert unsupported(H200, problem) is None
    of_kind = [
        each
        for each in candidates(H200, problem)
        if (each.block_m, each.split, each.cluster) == (block_m, split, cluster)
    ]
    if problem.epilogue == "norm" and cluster == 2:
        assert not of_kind  # blocks that wait for one another are no clusters
        return
    config = of_kind[0]
    found = cuda.compiled(config, problem.dtype, problem.epilogue, problem.head_dim)
    # Warpgroups exchange registers: all that 384 threads can start with must be there.
    assert "Used 168 registers" in found.log
    # Products that the compiler can't keep in flight are waited for one by one, and it says so.
    assert "serialized" not in found.log and "setmaxnreg" not in found.log
    code = sass(found.cubin)
    kind = {BF16: ".BF16", FP16: ""}[problem.dtype]
    # What is needed between tiles may wait in memory while results are finished, but not while products run.
    order = re.findall(r"\b(HGMMA|LDL|STL)\b", code)
    last = len(order) - order[::-1].index("HGMMA")
    assert set(order[order.index("HGMMA") : last]) == {"HGMMA"} and len(order) - order.count("HGMMA") < 64
    # Those of one step; for both halves of a tile, and for the first alone.
    products = 12 if block_m == 128 and not split else 4
    assert code.count(f"HGMMA.64x{config.own_n}x16.F32{kind} ") == products
    assert "ACQBULK" in code  # waits for the kernel before
    assert "UTMALDG.2D" in code and ("UTMALDG.2D.MULTICAST" in code) == (cluster == 2)
    assert code.count("USETMAXREG") == 2
    # A fence for the whole GPU would cost more than a step's products.
    assert "MEMBAR.ALL.GPU" not in code and "MEMBAR.SC" not in code


@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_fit_into_shared_memory(name: str) -> None:
    found = candidates(H200, PROBLEMS[name])
    assert len(found) == len(set(found)) >= 4
    for config in found:
        assert config.stages >= 3
        assert config.shared + 16 * config.stages <= H200.shared_memory
        # Boxes of the weights start at multiples of 1024 bytes, as their swizzle needs.
        assert config.block_n // config.cluster % 8 == 0


def tiles_of(schedule: Schedule, config: Config, *, waits: bool = False) -> list[list[tuple[int, int]]]:
    """By block, the (row tile, column tile) pairs that hopper_gemm.cu's `Schedule` deals it, in order."""
    found: list[list[tuple[int, int]]] = []
    groups = schedule.together * schedule.column_tiles
    single = schedule.alone * -(-schedule.column_tiles // config.cluster)
    for block in range(schedule.clusters * config.cluster):
        cluster, rank = divmod(block, config.cluster)
        own = []
        for item in range(cluster, groups, schedule.clusters):
            column, group = divmod(item, schedule.together)
            if waits:
                group, column = divmod(item, schedule.column_tiles)
            own.append((group * config.cluster + rank, column))
        first = schedule.clusters - 1 - cluster
        for item in range(first if first < schedule.spread else single, single, schedule.spread):
            columns, row = divmod(item, schedule.alone)
            if waits:
                row, columns = divmod(item, schedule.column_tiles)
            own.append((schedule.together * config.cluster + row, columns * config.cluster + rank))
        found.append([pair for pair in own if pair[1] < schedule.column_tiles])
    return found


@pytest.mark.parametrize("rows", [TWO_CROPS, JOINT, Rows(3, 256, 5), Rows(1, 1600, 5), Rows(1, 16, 7), None])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_output_belongs_to_one_block(name: str, rows: Rows | None) -> None:
    problem = PROBLEMS[name]
    m = rows.total if rows else 8192
    for config in candidates(H200, problem):
        waits = problem.epilogue == "norm"
        schedule = Schedule.of(m, problem.n, config, 132, waits=waits)
        blocks = schedule.clusters * config.cluster
        assert blocks <= 132
        assert schedule.column_tiles * config.block_n >= problem.n
        dealt = [pair for block in tiles_of(schedule, config, waits=waits) for pair in block]
        every = {(row, c) for row in range(len(schedule.row_tiles)) for c in range(schedule.column_tiles)}
        assert len(dealt) == len(every) and set(dealt) == every
        covered = [row for first, count in schedule.row_tiles for row in range(first, first + count)]
        assert sorted(covered) == list(range(m))
        together = schedule.row_tiles[: schedule.together * config.cluster]
        assert all(count > config.block_m - cuda.HALF_M for _, count in together)
        if waits:
            tiles = tiles_of(schedule, config, waits=True)
            assert all(len({row for row, _ in block}) == len(block) for block in tiles)


@pytest.mark.parametrize("processors", [1, 2, 5, 16, 66, 132])
@pytest.mark.parametrize("rows", [TWO_CROPS, JOINT, Rows(6, 1600, 5), Rows(1, 1600, 205), Rows(8, 2025, 105)])
def test_who_waits_for_a_rows_other_columns_gets_them(rows: Rows, processors: int) -> None:
    """Warpgroups take turns at products, tell of a tile then, and wait for the row's other tiles."""
    small = Target.named("sm_90", processors)
    for n in (128, 768, 1024, 1280, 4096):
        problem = Problem(rows.total, n, 64, BF16, "norm")
        if unsupported(small, problem):
            assert n > 256 * processors
            continue
        for config in candidates(small, problem):
            schedule = Schedule.of(rows.total, n, config, processors, waits=True)
            blocks = tiles_of(schedule, config, waits=True)
            told: Counter[int] = Counter()
            done = [0] * len(blocks)  # products, each block in order
            waiting: list[set[int]] = [set() for _ in blocks]  # numbers of tiles whose rows are waited for
            moved = True
            while moved:
                moved = False
                for block, tiles in enumerate(blocks):
                    ready = {i for i in waiting[block] if told[tiles[i][0]] == schedule.column_tiles}
                    waiting[block] -= ready
                    # A warpgroup that waits does no products; the other one may, if it is its turn. Those
                    # that split a tile both wait.
                    turns = 1 if config.split else 2
                    while done[block] < len(tiles) and done[block] - turns not in waiting[block]:
                        told[tiles[done[block]][0]] += 1
                        waiting[block].add(done[block])
                        done[block] += 1
                        moved = True
                    moved |= bool(ready)
            assert not any(waiting) and done == [len(tiles) for tiles in blocks], (n, config)


@pytest.mark.parametrize(
    "name", ["L qkv", "L proj", "L fc1", "L fc2", "L proj, norm", "B fc2, norm", "B qkv", "B fc1"]
)
def test_two_crops_take_whole_rounds_of_tiles(name: str) -> None:
    problem = PROBLEMS[name]
    config = candidates(H200, problem)[0]
    schedule = Schedule.of(problem.m, problem.n, config, 132)
    assert schedule.time == int(schedule.time)
    work = problem.m * problem.n / (config.block_m * config.block_n * 132)
    assert work > 0.95 * schedule.time


def test_says_what_it_cannot_do() -> None:
    good = PROBLEMS["L fc1"]
    assert "sm_90" in (unsupported(Target.named("sm_120"), good) or "")
    assert "16-bit" in (unsupported(H200, Problem(128, 128, 128, torch.float32)) or "")
    assert "multiple" in (unsupported(H200, Problem(128, 3, 1024, BF16)) or "")
    assert "multiple" in (unsupported(H200, Problem(128, 128, 100, BF16)) or "")
    assert "heads" in (unsupported(H200, Problem(128, 128, 128, BF16, "rope", 16)) or "")
    assert "heads" in (unsupported(H200, Problem(128, 96, 128, BF16, "rope", 96)) or "")
    few = Target.named("sm_90", 4)
    assert "processors" in (unsupported(few, Problem(128, 1280, 128, BF16, "norm")) or "")
    assert unsupported(few, Problem(128, 1024, 128, BF16, "norm")) is None
