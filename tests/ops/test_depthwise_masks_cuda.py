"""Hopper's mask kernel compiled without a GPU: its instructions, no spills; its tiles and its columns."""

from __future__ import annotations

import re

import pytest
import torch
from hopper_sass import needs_nvrtc, sass

from fasteomt.ops.depthwise_masks import Problem, cuda
from fasteomt.ops.depthwise_masks.cuda import Columns, Config, candidates, unsupported
from fasteomt.ops.grid import Grid
from fasteomt.ops.target import Target

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
H200 = Target.named("sm_90")
PROBLEMS = {
    "L": Problem(Grid(2, 32, 2), 100, 1024, FP16, FP32),
    "L, one crop": Problem(Grid(1, 32, 2), 100, 1024, BF16, BF16),
    "B": Problem(Grid(2, 32, 2), 100, 768, BF16, FP32),
    "S, patches of 8": Problem(Grid(3, 64, 1), 100, 384, FP16, FP16),
    "T": Problem(Grid(2, 32, 2), 50, 192, FP16, FP32),
    "7B": Problem(Grid(2, 32, 2), 100, 4096, BF16, FP32),
    "119 queries": Problem(Grid(2, 40, 2), 119, 1024, FP16, FP32),
    "200 queries": Problem(Grid(2, 32, 2), 200, 1024, BF16, FP32),
    "4096 queries": Problem(Grid(1, 32, 2), 4096, 1024, BF16, FP32),
    "one query": Problem(Grid(1, 7, 0), 1, 64, BF16, FP32),
}


@needs_nvrtc
@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_compile_to_hopper_instructions_without_spills(name: str) -> None:
    problem = PROBLEMS[name]
    for config in candidates(H200, problem):
        columns = config.columns(problem.queries)
        wide = problem.out_dtype == FP32
        found = cuda.compiled(config, problem.dtype, columns.count, columns.ones, wide=wide)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in found.log, config
        # Warpgroups exchange registers: all that 384 threads can start with must be there.
        assert "Used 168 registers" in found.log, config
        # Products that the compiler can't keep in flight are waited for one by one, and it says so.
        assert "serialized" not in found.log and "setmaxnreg" not in found.log, config
        # All shared memory is what the launch asks for.
        assert "bytes smem" not in found.log, config
        code = sass(found.cubin)
        kind = {BF16: ".BF16", FP16: ""}[problem.dtype]
        assert code.count(f"HGMMA.64x{columns.count}x16.F32{kind} ") == 4 * config.parts
        assert code.count("UTMALDG.2D") == 2 and code.count("USETMAXREG") == 2
        # A thread that copies asks for a pixel every 16, of 8 chunks each; and for taps.
        assert code.count("LDGSTS.E.BYPASS.LTC256B.128") >= -(-config.loaded // 16) + 1
        assert "LDL" not in code and "STL" not in code and "MEMBAR.ALL.GPU" not in code
        assert "CALL" not in code  # a division in full


@needs_nvrtc
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_few_instructions_an_element(dtype: torch.dtype) -> None:
    """Of the loop's, which bound the time: a warp has 32 pixels x 64 channels in it, a lane 64 elements."""
    code = sass(cuda.compiled(Config(2, 3), dtype, 104, 100).cubin)
    lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/ +(.*?) *;", code)]
    products = [at for at, text in lines if "HGMMA" in text]
    ends = ((at, re.search(r"BRA .*?(0x[0-9a-f]+)", text)) for at, text in lines)
    loops = [(int(found[1], 16), at) for at, found in ends if found]
    around = [each for each in loops if each[0] < products[0] and each[1] > products[-1]]
    start, end = min(around, key=lambda each: each[1] - each[0])
    loop = [text for at, text in lines if start <= at <= end]
    names = ("FFMA", "FMUL", "LDS", "STS", "BAR.SYNC")
    count = {name: sum(text.startswith(name) for text in loop) for name in names}
    assert count["FFMA"] + count["FMUL"] == 64 * 10  # nine products and a square
    assert count["LDS"] == 10 * 6 + 9 and count["STS"] == 32 and count["BAR.SYNC"] == 2
    assert len(loop) <= 64 * 16


@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_fit(name: str) -> None:
    problem = PROBLEMS[name]
    assert unsupported(H200, problem) is None
    found = candidates(H200, problem)
    assert {config.parts for config in found} == {1, 2} and len(found) == 2
    for config in found:
        columns = config.columns(problem.queries).count
        assert 2 <= config.stages <= 4
        assert config.shared(columns) <= H200.shared_memory
        # Products read from multiples of 1024 bytes.
        assert config.stage_bytes(columns) % 1024 == columns * cuda.ROW_BYTES % 1024 == 0
    registers = 2 * cuda.CONSUMER_REGISTERS + cuda.PRODUCER_REGISTERS
    assert registers <= 3 * 168 and cuda.CONSUMER_REGISTERS % 8 == cuda.PRODUCER_REGISTERS % 8 == 0


@pytest.mark.parametrize("most", [120, 208])
@pytest.mark.parametrize("queries", [1, 7, 15, 16, 100, 111, 112, 119, 120, 200, 207, 208, 4096])
def test_every_query_and_one_of_ones_has_a_column(queries: int, most: int) -> None:
    columns = Columns.of(queries, most)
    assert 16 <= columns.count <= most and columns.count % 8 == 0
    assert (columns.blocks - 1) * columns.queries < queries <= columns.blocks * columns.queries
    for block in range(columns.blocks):
        first = block * columns.queries
        # Rows of a crop by column, as they are copied: all but the last 8, then these.
        last = queries - columns.ones + columns.count - 8
        rows = [*range(first, first + columns.count - 8), *range(last, last + 8)]
        assert len(rows) == columns.count
        assert rows[columns.ones] == queries
        own = range(first, min(first + columns.queries, queries))
        assert rows[: len(own)] == list(own) and columns.ones >= len(own)


@pytest.mark.parametrize(("name", "parts", "rounds"), [("L", 2, 1), ("B", 2, 1), ("L, one crop", 1, 1)])
def test_usual_crops_are_one_round(name: str, parts: int, rounds: int) -> None:
    config = candidates(H200, PROBLEMS[name])[0]
    assert config.parts == parts
    assert config.blocks(PROBLEMS[name]) == 128 <= rounds * H200.processors


def test_says_what_it_cannot_do() -> None:
    good = PROBLEMS["L"]
    grid = good.grid
    assert "sm_90" in (unsupported(Target.named("sm_120"), good) or "")
    assert "sm_90" in (unsupported(Target("cpu"), good) or "")
    for problem, word in (
        (Problem(grid, 100, 1024, FP32, FP32), "16-bit"),
        (Problem(grid, 100, 1008, BF16, FP32), "1008 channels are no multiple of 64"),
        (Problem(grid, 100, 1024, BF16, FP16), "results in torch.float16"),
        (Problem(Grid(1, 256, 2), 100, 4096, BF16, FP32), "too large"),
    ):
        assert word in (unsupported(H200, problem) or "")
