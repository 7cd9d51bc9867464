"""The Hopper attention compiled without a GPU: its instructions, no spills; its schedule; its arithmetic."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hopper_sass import needs_nvrtc, sass
from torch import Tensor

from fasteomt.ops.attention import Problem, cuda
from fasteomt.ops.attention.cuda import Config, Schedule, candidates, unsupported
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

BF16, FP16 = torch.bfloat16, torch.float16
H200 = Target.named("sm_90")
TOKENS = (16, 17, 64, 72, 73, 250, 261, 361, 1024, 1029, 1129, 1605)
PROBLEMS = {
    "L": Problem(Rows(2, 1024, 5), 16, 64, BF16),
    "L, one crop": Problem(Rows(1, 1024, 5), 16, 64, FP16),
    "L, three crops": Problem(Rows(3, 1024, 5), 16, 64, BF16),
    "L, joint": Problem(Rows(2, 1024, 105), 16, 64, BF16),
    "L, patch 32": Problem(Rows(2, 256, 5), 16, 64, FP16),
    "B": Problem(Rows(2, 1024, 5), 12, 64, FP16),
    "T, 640 px": Problem(Rows(2, 1600, 5), 3, 64, BF16),
    "few": Problem(Rows(1, 12, 5), 3, 64, BF16),
}
# hopper_attention.cu has it, too.
MARGIN = 4.0


@needs_nvrtc
@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_compile_to_hopper_instructions_without_spills(name: str) -> None:
    problem = PROBLEMS[name]
    for config in candidates(H200, problem):
        schedule = Schedule.of(problem.rows.tokens, config)
        found = cuda.compiled(config, problem.dtype, schedule.last, schedule.extra > 0)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in found.log, config
        # Warpgroups exchange registers: all that the threads can start with must be there.
        assert f"Used {config.launch_registers} registers" in found.log, config
        # Products that the compiler can't keep in flight are waited for one by one, and it says so.
        assert "serialized" not in found.log and "setmaxnreg" not in found.log, config
        # All shared memory is what the launch asks for.
        assert "bytes smem" not in found.log, config
        code = sass(found.cubin)
        assert "UTMALDG.2D" in code and code.count("USETMAXREG") == 2
        assert "LDL" not in code and "STL" not in code
        # Only what blocks gather is for the whole GPU.
        assert schedule.extra or not re.search(r"MEMBAR\.\w+\.GPU", code), config
        # Scores in the step after the first and in the loop.
        kind = {BF16: ".BF16", FP16: ""}[problem.dtype]
        count = 12 if schedule.last == config.block_n else 8
        assert code.count(f"HGMMA.64x{config.block_n}x16.F32{kind} ") >= count, config
        # Of extra warps, or to multiply scores again.
        assert ("HMMA.16816.F32" in code) == (schedule.extra > 0 or config.units == 2)


def order(code: str) -> str:
    """A kernel's instructions in short: P, products; E, exponentials; 0 or 1, a wait until so many groups of
    products are under way; b, a branch."""
    found = re.finditer(r"(HGMMA)|(MUFU\.EX2)|WARPGROUP\.DEPBAR\.LE gsb0, 0x([01])|(BRA)", code)
    return "".join("P" if each[1] else "E" if each[2] else each[3] or "b" for each in found)


@needs_nvrtc
@pytest.mark.parametrize("name", ["L", "L, one crop", "L, joint"])
def test_exponentials_run_beside_products(name: str) -> None:
    """Of another unit, or else of another step: its values only."""
    problem = PROBLEMS[name]
    for config in candidates(H200, problem):
        schedule = Schedule.of(problem.rows.tokens, config)
        found = cuda.compiled(config, problem.dtype, schedule.last, schedule.extra > 0)
        count = config.block_n // 2
        steps, block = order(sass(found.cubin)), f"E{{{count}}}"
        if config.units == 2:
            # In the loop: all of a unit's products start before a branch, which keeps the exponentials of the
            # other one apart. Rarely, those are done anew, beyond a branch.
            turn = f"{block}bE{{{count + 2}}}b*0P{{{4 + config.block_n // 16}}}b+"
            assert re.search(turn * 2, steps), (config, steps)
        else:
            # In the loop: a wait for scores, rarely new maxima, the exponentials, a wait for the result.
            assert re.search(f"P{{4}}b+P+1b0EEb?{block}b0", steps), (config, steps)


@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_fit(name: str) -> None:
    problem = PROBLEMS[name]
    assert unsupported(H200, problem) is None
    found = candidates(H200, problem)
    assert 1 <= len(found) == len(set(found)) <= 3
    for config in found:
        last = Schedule.of(problem.rows.tokens, config).last
        registers, others = config.registers
        # As in `hopper_attention.cu`.
        assert config.stages(last) >= (5 if config.units == 2 else 4)
        assert config.block_n % 16 == 0
        assert registers % 8 == others % 8 == 0
        assert others <= config.launch_registers <= registers
        assert config.warpgroups * registers + others <= (config.warpgroups + 1) * config.launch_registers
        assert config.threads * config.launch_registers <= 65536
        assert config.shared(last) <= H200.shared_memory


@pytest.mark.parametrize("tokens", TOKENS)
def test_every_query_and_key_is_taken_once(tokens: int) -> None:
    for config in cuda._CONFIGS:
        schedule = Schedule.of(tokens, config)
        queries: list[int] = []
        for tile in range(schedule.tiles):
            units = schedule.units_of(tile)
            assert 1 <= len(units) <= config.warpgroups * config.units
            queries += (64 * unit + row for unit in units for row in range(64) if 64 * unit + row < tokens)
        queries += range(64 * schedule.units, 64 * schedule.units + schedule.extra)
        assert sorted(queries) == list(range(tokens))
        assert 0 <= schedule.extra <= 8
        # The first step has the last keys.
        keys = [*range(tokens - schedule.rest, tokens), *range((schedule.steps - 1) * config.block_n)]
        assert sorted(keys) == list(range(tokens))
        assert schedule.rest <= schedule.last <= config.block_n + 16 and schedule.last - schedule.rest < 16
        # No step for a few keys alone.
        assert schedule.last > 16 or schedule.steps == 1


def test_two_crops_of_the_large_model_run_at_once() -> None:
    problem = PROBLEMS["L"]
    config = candidates(H200, problem)[0]
    schedule = Schedule.of(1029, config)
    blocks = problem.rows.crops * problem.heads * schedule.tiles
    assert (config.warpgroups, config.units, blocks, schedule.extra) == (4, 1, 128, 5)


def test_joint_crops_leave_few_processors_idle() -> None:
    problem = PROBLEMS["L, joint"]
    config = candidates(H200, problem)[0]
    work = problem.rows.crops * problem.heads * math.ceil(1129 / 64) / H200.processors
    assert cuda._time(H200, problem, config) < 1.2 * work


def test_rows_of_three_crops() -> None:
    """Blocks by crop and head, as the kernel reads its index."""
    heads, rows = 3, Rows(3, 245, 5)
    schedule = Schedule.of(rows.tokens, Config(2, 128))
    found = []
    for block in range(rows.crops * heads * schedule.tiles):
        pair, tile = divmod(block, schedule.tiles)
        crop, head = divmod(pair, heads)
        first = crop * rows.tokens + 64 * schedule.units_of(tile)[0]
        found.append((first, head))
    assert len(set(found)) == len(found) == 3 * 3 * 2
    assert max(found) == (2 * 250 + 128, 2)


def emulated(q: Tensor, k: Tensor, v: Tensor, config: Config) -> Tensor:
    """In the kernel's order of steps: weights relative to maxima that may be old, rounded to v's dtype."""
    schedule = Schedule.of(len(k), config)
    scale, slack = math.log2(math.e) / 8, cuda._SLACK[v.dtype]
    out = torch.zeros(len(q), 64)
    total, shift = torch.zeros(len(q), 1), torch.full((len(q), 1), math.inf)
    for step in range(schedule.steps):
        start = ((schedule.steps if step == 0 else step) - 1) * config.block_n
        rows = slice(start, start + (schedule.rest if step == 0 else config.block_n))
        scores = q.float() @ k[rows].float().T
        top = scores.amax(1, keepdim=True) * scale
        too_low = top + shift > slack
        if config.units == 2 and step > 0:
            # Lanes sum up weights of 2 keys in 8.
            sums = torch.exp2(scores * scale + shift).unflatten(1, (-1, 4, 2)).sum((1, 3))
            too_low = sums.amax(1, keepdim=True) > 2.0**slack
        # Rows of a warp decide together.
        for warp in range(0, len(q), 16):
            own = slice(warp, warp + 16)
            if too_low[own].any():
                now = torch.minimum(shift[own], -top[own] - MARGIN)
                shrink = torch.exp2(now - shift[own])
                shift[own], total[own], out[own] = now, total[own] * shrink, out[own] * shrink
        weights = torch.exp2(scores * scale + shift)
        total += weights.sum(1, keepdim=True)
        weights = weights.to(v.dtype).float()
        assert weights.isfinite().all()
        out += weights @ v[rows].float()
    return (out / total).to(v.dtype)


def kinds_of_scores() -> dict[str, Tensor]:
    """Factors of the keys."""
    return {
        "plain": torch.ones(361),
        "rising": torch.linspace(0, 12, 361),
        "falling": torch.linspace(12, 0, 361),
        "massive": torch.where(torch.arange(361) == 77, 200.0, 1.0),
        "alike": torch.zeros(361),
        "huge": torch.linspace(-1000, 1000, 361),
        "massive in the first block": torch.where(torch.arange(361) == 360, 200.0, 1.0),
    }


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("kind", kinds_of_scores())
def test_old_maxima_lose_nothing(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(361, 64) for _ in range(3))
    # All keys point one way, so that scores of a query grow with their factors.
    k = (0.3 * k + torch.randn(64)) * kinds_of_scores()[kind][:, None]
    q, k, v = (each.to(dtype) for each in (q, k, v))
    weights = (q.double() @ k.double().T / 8).softmax(1)
    exact = weights @ v.double()
    allowed = 1.5 * ((weights.to(dtype).double() @ v.double()).to(dtype) - exact).norm()
    for config in (Config(4, 64), Config(2, 64, 2), Config(4, 48), Config(2, 128), Config(5, 32)):
        assert (emulated(q, k, v, config) - exact).norm() < allowed


def test_a_lane_packs_scores_as_products_read_weights() -> None:
    """PTX ISA, wgmma: accumulators of D, and register fragments of A in .m64k16."""
    for lane in range(32):
        row, pair = lane // 4, lane % 4 * 2
        scores = [(row + i // 2 % 2 * 8, i // 4 * 8 + pair + i % 2) for i in range(64)]
        for register in range(32):
            step, part = divmod(register, 4)
            wanted = [(row + part % 2 * 8, 16 * step + part // 2 * 8 + pair + i) for i in range(2)]
            assert scores[2 * register : 2 * register + 2] == wanted


@pytest.mark.parametrize(("down", "chunk"), [(True, 0), (True, 3), (False, 1), (False, 2)])
def test_extra_warps_read_what_the_swizzle_put_there(down: bool, chunk: int) -> None:
    """`ExtraWarp::place` against the swizzle of the copy engine: PTX ISA, mma.m16n8k16's fragments of A."""
    for lane in range(32):
        second, third = lane // 8 % 2, lane // 16
        row = lane % 8 + 8 * (second if down else third)
        place = row * 128 + ((third if down else second) ^ (row & 7)) * 16
        # Matrices: rows 0 - 7 and 8 - 15 of the first 8 columns of A, then of the others. Keys are A's rows;
        # of values they are its columns, and each matrix is transposed.
        of_a = (8 * second, 8 * third)
        key, feature = of_a if down else of_a[::-1]
        address = (key + lane % 8) * 128 + (feature + 16 * chunk) * 2
        assert place ^ (32 * chunk) == address ^ (address // 128 % 8 * 16)


def test_says_what_it_cannot_do() -> None:
    rows = Rows(2, 1024, 5)
    for target, problem, word in (
        (Target.named("sm_120"), PROBLEMS["L"], "sm_90"),
        (Target("cpu"), PROBLEMS["L"], "sm_90"),
        (H200, Problem(rows, 16, 64, torch.float32), "float16"),
        (H200, Problem(rows, 16, 128, BF16), "head_dim 128"),
        (H200, Problem(rows, 16, 64, BF16, rope=True), "rope"),
        (H200, Problem(rows, 16, 64, FP16, half_accumulate=True), "half_accumulate"),
        (H200, Problem(Rows(2, 10, 5), 16, 64, BF16), "15"),
        (H200, Problem(Rows(1 << 14, 1024, 5), 16, 64, BF16), "rows"),
    ):
        assert word in (unsupported(target, problem) or "")
