"""The Hopper attention's source run by an emulator of Hopper; `hopper_emulator` says what that can show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hopper_emulator import Edit, emulator, fault_of, needs_compiler
from torch import Tensor

from fasteomt.ops.attention import Problem, cuda, reference
from fasteomt.ops.attention.cuda import Config
from fasteomt.ops.rows import Rows

BF16, FP16 = torch.bfloat16, torch.float16
HEAD_DIM = 64

pytestmark = needs_compiler


@dataclass(frozen=True)
class Case:
    """`scale`: of queries and keys; `stages`: of the ring, few so that it goes round."""

    rows: Rows
    config: Config
    heads: int = 1
    dtype: torch.dtype = BF16
    scale: float = 1.0
    stages: int = 4
    out_dtype: torch.dtype | None = None


# Tokens that are whole units of 64 queries, and 1, 5, 8 or more beyond; fewer than a unit, a block of keys or
# the ring's stages; blocks with fewer units than warpgroups; one, two and more steps; scores that make old
# maxima too low, that are huge or all alike.
CASES = {
    "one block of keys": Case(Rows(1, 12, 5), Config(2, 128), heads=3),
    "whole units": Case(Rows(2, 128, 0), Config(4, 64), dtype=FP16),
    "extra warps, three crops": Case(Rows(3, 64, 5), Config(2, 160), dtype=FP16, stages=5),
    "extra warps, one query": Case(Rows(1, 192, 1), Config(3, 96), scale=3.0),
    "extra warps, blocks share a head": Case(Rows(1, 320, 8), Config(2, 32), heads=2, scale=2.0),
    "extra warps, large scores": Case(Rows(2, 256, 5), Config(4, 48), scale=12.0, stages=5),
    "extra warps, small blocks": Case(Rows(3, 64, 5), Config(1, 16), heads=4),
    "rows beyond a crop": Case(Rows(2, 245, 5), Config(5, 32)),
    "rows beyond a crop, large scores": Case(Rows(1, 150, 25), Config(2, 48), dtype=FP16, scale=3.0),
    "pairs, one block of keys": Case(Rows(1, 90, 5), Config(1, 96, 2), stages=5),
    "pairs, equal scores": Case(Rows(1, 120, 5), Config(1, 64, 2), dtype=FP16, scale=0.0, stages=5),
    "pairs, extra warps": Case(Rows(2, 256, 5), Config(2, 48, 2), scale=12.0, stages=5),
    "pairs and one unit more": Case(Rows(1, 150, 25), Config(2, 32, 2), dtype=FP16, scale=5.0, stages=6),
    "pairs and extra warps, into BF16": Case(
        Rows(1, 128, 5), Config(1, 48, 2), dtype=FP16, stages=5, out_dtype=BF16
    ),
    "pairs, huge scores": Case(Rows(1, 240, 10), Config(2, 64, 2), scale=100.0, stages=5),
}


def attention(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    out = torch.empty(case.rows.total, case.heads * HEAD_DIM)
    return reference.run(torch.cat((q, k, v), dim=1), out, case.heads, case.rows)


def launched(
    case: Case, qkv: Tensor, seed: int = 0, bug: tuple[Edit, ...] = (), room: Tensor | None = None
) -> tuple[Tensor, str]:
    """The kernel's result, and its fault or ''."""
    out = torch.zeros(case.rows.total, case.heads * HEAD_DIM, dtype=case.out_dtype or case.dtype)
    options = {"config": case.config, "room": room}
    with pytest.MonkeyPatch.context() as patch, emulator().in_place_of_gpu(132, seed, bug):
        patch.setattr(Config, "stages", lambda self, last: case.stages)
        fault = fault_of(lambda out: cuda.run(qkv, out, case.heads, case.rows, **options), out)
    return out, fault


def wrong(case: Case, seed: int = 0, bug: tuple[Edit, ...] = (), room: Tensor | None = None) -> str:
    """What is wrong with the kernel's result, or ''."""
    torch.manual_seed(0)
    width = case.heads * HEAD_DIM
    scales = torch.tensor([case.scale, case.scale, 1.0]).repeat_interleave(width)
    qkv = (torch.randn(case.rows.total, 3 * width) * scales).to(case.dtype)
    out, fault = launched(case, qkv, seed, bug, room)
    if fault:
        return fault
    q, k, v = qkv.float().split(width, dim=1)
    exact = attention(q, k, v, case)
    # Weights and results are rounded; the rest is for scores in fp32 and for FP16's subnormal weights.
    of_weights = torch.finfo(case.dtype).eps / 2 * attention(q, k, v.abs(), case)
    rounding = of_weights + torch.finfo(out.dtype).eps / 2 * exact.abs()
    close = (out.float() - exact).abs() <= 1.05 * rounding + 2e-4
    return "" if close.all() else f"{(~close).sum()} of {close.numel()} results are wrong"


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_reference_does(name: str) -> None:
    assert not wrong(CASES[name])


def test_launches_gather_anew() -> None:
    """What blocks' extra warps have: nobody clears the room between launches."""
    case = CASES["extra warps, blocks share a head"]
    room = cuda.room_for(Problem(case.rows, case.heads, HEAD_DIM, case.dtype), torch.device("cpu"))
    for seed in range(3):
        assert not wrong(case, seed, room=room)
        assert not room[: case.rows.crops * case.heads].any()


@pytest.mark.parametrize(
    "name",
    ["rows beyond a crop", "extra warps, small blocks", "extra warps, three crops", "pairs, extra warps"],
)
def test_a_crop_spoils_no_other(name: str) -> None:
    """The first one's last keys are padded: the next one's rows lie there."""
    case = CASES[name]
    torch.manual_seed(0)
    qkv = torch.randn(case.rows.total, 3 * case.heads * HEAD_DIM).to(case.dtype)
    found = []
    for value in (1.0, float("inf")):
        qkv[case.rows.tokens :] = value
        out, fault = launched(case, qkv)
        assert not fault
        found.append(out[: case.rows.tokens])
    assert found[0].isfinite().all() and torch.equal(*found)


BEYOND, EXTRA = CASES["rows beyond a crop"], CASES["extra warps, large scores"]
SHARED = CASES["extra warps, blocks share a head"]
SMALL, PAIRS = CASES["extra warps, small blocks"], CASES["pairs, extra warps"]
UNEVEN = CASES["pairs and one unit more"]
BUGS: dict[str, tuple[Case, tuple[Edit, ...]]] = {
    "keys are given back while they are read": (
        BEYOND,
        (
            (
                "        multiply_wait<1>();\n        in_use_until_here(first_of<BLOCK_N / 2>(scores));\n",
                "        ring.give_back(keys);\n",
            ),
            (
                "        ring.give_back(keys);\n        unit.",
                "        multiply_wait<1>();\n        in_use_until_here(scores);\n        unit.",
            ),
        ),
    ),
    "values are given back while they are read": (
        BEYOND,
        (
            (
                "        unit.values_are_added();\n        ring.give_back(values);",
                "        unit.values_are_added();",
            ),
            (
                "        next = ring.take();\n        unit.",
                "        next = ring.take(), ring.give_back(values);\n unit.",
            ),
        ),
    ),
    "results go where other warps read their queries": (BEYOND, (("    warpgroup_sync(group);\n", ""),)),
    "results are read before all lanes have written them": (
        BEYOND,
        (("    __syncwarp();\n    const int width", "    const int width"),),
    ),
    "rows beyond a crop are written": (BEYOND, (("if (row + i < job.tokens) *", "*"),)),
    "extra queries beyond a crop are written": (
        EXTRA,
        (("            if (row >= job.tokens) continue;\n", ""),),
    ),
    "lanes of an extra warp give keys back before others look": (
        SMALL,
        (("        __syncwarp();\n        ring.give_back(keys);", "        ring.give_back(keys);"),),
    ),
    "a ring of three stages never moves on": (
        replace(SMALL, stages=3),
        (('static_assert(STAGES >= (UNITS > 1 ? 5 : 4), "the ring would never move on");\n', ""),),
    ),
    "extra warps add values twice": (PAIRS, (("(values + c * 16 * ROW_BYTES)", "values"),)),
    "what extra warps leave is read before it is there": (EXTRA, (("    extra_sync();\n", ""),)),
    "the first extra warp adds for other queries": (EXTRA, (("a.y * ours[1] + b.y", "a.y * ours[0] + b.y"),)),
    "blocks' extra warps have the same keys": (
        SHARED,
        (("turn = tile.share * EXTRA_WARPS + warp;", "turn = warp;"),),
    ),
    "the last block has what the first one left": (
        SHARED,
        (("for (int other = 1; other < job.tiles; ++other) {", "for (int other = 1; other < 1; ++other) {"),),
    ),
    "extra warps' maxima of old keys stay": (EXTRA, (("                total[j] *= shrink[j];\n", ""),)),
    "extra warps count padding as keys": (
        CASES["extra warps, three crops"],
        (("if (i / 2 * 8 + key >= count)", "if (i / 2 * 8 + key >= count + 8)"),),
    ),
    "extra warps aren't waited for": (EXTRA, ((" + (EXTRA ? EXTRA_WARPS : 0)", ""),)),
    "padding is not cleared": (PAIRS, (("    clear_padding(job, ring);\n", ""),)),
    "padding counts as keys": (BEYOND, (("if (key >= count) scores[i] = NOTHING;", ""),)),
    "results keep their old scale": (EXTRA, (("            total[half] *= shrink;\n", ""),)),
    "no warpgroup has the first turn": (BEYOND, (("        turns.begin();\n", ""),)),
    "the last turn is not waited for": (
        BEYOND,
        (("        turns.end();\n", ""), ("turns.begin();", "turns.end();")),
    ),
    "warpgroups skip a turn": (BEYOND, (("? 0 : group + 1", "? 0 : group + 2"),)),
    "the second warpgroup never starts": (
        PAIRS,
        (("        if (!FIRST && number == 1) turns.let_next_start();\n", ""),),
    ),
    "a pair waits for a warpgroup that has one unit": (UNEVEN, (("tile.units == groups * UNITS;", "true;"),)),
    "keys are given back before the second unit needs them again": (
        PAIRS,
        (
            (
                "        weigh<FIRST>(job, ring, 1);\n        ring.give_back(keys);\n",
                "        weigh<FIRST>(job, ring, 1);\n",
            ),
            (
                "        const int before = values;\n",
                "        const int before = values;\n        ring.give_back(keys);\n",
            ),
        ),
    ),
    "a pair's ring of four stages never moves on": (
        replace(PAIRS, stages=4),
        (('static_assert(STAGES >= (UNITS > 1 ? 5 : 4), "the ring would never move on");\n', ""),),
    ),
    "a pair's products are used before they are waited for": (PAIRS, (("        finish(0);\n", ""),)),
    "both units have the same queries": (
        PAIRS,
        (("queries + (first + i) * UNIT_BYTES", "queries + first * UNIT_BYTES"),),
    ),
    "scores are multiplied again for other queries": (
        PAIRS,
        (("threadIdx.x / 32 % 4 * 16 * ROW_BYTES, true", "0, true"),),
    ),
    "scores are multiplied again with the wrong keys": (
        PAIRS,
        (("place(keys, false));\n            raise", "place(keys, true));\n            raise"),),
    ),
    "sums of weights that were too large remain": (PAIRS, (("            sums[0] = sums[1] = 0.0f;\n", ""),)),
    "weights grow without bounds": (UNEVEN, (("fmaxf(sums[0], sums[1]) > LIMIT", "false"),)),
    "values are 8 rows further on": (BEYOND, (("16 * ROW_BYTES >> 4", "8 * ROW_BYTES >> 4"),)),
    "barriers lie where extra warps leave what they have": (
        EXTRA,
        (("full = of_extra + EXTRA_WARPS * EXTRA_BYTES", "full = of_extra"),),
    ),
    "barriers are used before they are made": (BEYOND, (("    __syncthreads();\n", ""),)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_finds_a_planted_bug(bug: str) -> None:
    case, edits = BUGS[bug]
    assert any(wrong(case, seed, edits) for seed in range(8))
