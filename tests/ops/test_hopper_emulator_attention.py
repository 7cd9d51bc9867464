"""The Hopper attention's source run by an emulator of Hopper; `hopper_emulator` says what that can show."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hopper_emulator import Edit, emulator, fault_of, needs_compiler
from torch import Tensor

from fasteomt.ops.attention import cuda, reference
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


# Tokens that are whole units of 64 queries, and 1, 5, 8 or more beyond; fewer than a unit, a block of keys or
# the ring's stages; blocks with fewer units than warpgroups; scores that make old maxima too low.
CASES = {
    "one block of keys": Case(Rows(1, 12, 5), Config(2, 128), heads=3),
    "whole units": Case(Rows(2, 128, 0), Config(4, 64), dtype=FP16),
    "extra warps, three crops": Case(Rows(3, 64, 5), Config(2, 160), dtype=FP16, stages=5),
    "extra warps, one query": Case(Rows(1, 192, 1), Config(3, 96), scale=3.0),
    "extra warps, blocks share a head": Case(Rows(1, 320, 8), Config(2, 32, 2), heads=2, scale=2.0),
    "extra warps, large scores": Case(Rows(2, 256, 5), Config(4, 48), scale=12.0, stages=5),
    "extra warps, small blocks": Case(Rows(3, 64, 5), Config(1, 16), heads=4),
    "rows beyond a crop": Case(Rows(2, 245, 5), Config(5, 32)),
    "rows beyond a crop, large scores": Case(Rows(1, 150, 25), Config(2, 48, 2), dtype=FP16, scale=3.0),
}


def attention(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    out = torch.empty(case.rows.total, case.heads * HEAD_DIM)
    return reference.run(torch.cat((q, k, v), dim=1), out, case.heads, case.rows)


def wrong(case: Case, seed: int = 0, bug: tuple[Edit, ...] = ()) -> str:
    """What is wrong with the kernel's result, or ''."""
    torch.manual_seed(0)
    width = case.heads * HEAD_DIM
    scales = torch.tensor([case.scale, case.scale, 1.0]).repeat_interleave(width)
    qkv = (torch.randn(case.rows.total, 3 * width) * scales).to(case.dtype)
    out = torch.zeros(case.rows.total, width, dtype=case.dtype)
    with pytest.MonkeyPatch.context() as patch, emulator().in_place_of_gpu(132, seed, bug):
        patch.setattr(Config, "stages", case.stages)
        fault = fault_of(lambda out: cuda.run(qkv, out, case.heads, case.rows, config=case.config), out)
    if fault:
        return fault
    q, k, v = qkv.float().split(width, dim=1)
    exact = attention(q, k, v, case)
    # Weights and results are rounded; the rest is for scores in fp32 and for FP16's subnormal weights.
    rounding = torch.finfo(case.dtype).eps / 2 * (attention(q, k, v.abs(), case) + exact.abs())
    close = (out.float() - exact).abs() <= 1.05 * rounding + 2e-4
    return "" if close.all() else f"{(~close).sum()} of {close.numel()} results are wrong"


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_reference_does(name: str) -> None:
    assert not wrong(CASES[name])


BEYOND, EXTRA = CASES["rows beyond a crop"], CASES["extra warps, large scores"]
SMALL = CASES["extra warps, small blocks"]
BUGS: dict[str, tuple[Case, tuple[Edit, ...]]] = {
    "keys are given back while they are read": (
        BEYOND,
        (
            (
                "    multiply_wait<1>();\n    in_use_until_here(scores);\n    ring.give_back(keys);",
                "    ring.give_back(keys);\n    multiply_wait<1>();\n    in_use_until_here(scores);",
            ),
        ),
    ),
    "values are given back while they are read": (
        BEYOND,
        (
            ("    in_use_until_here(before);\n    ring.give_back(values);", "    in_use_until_here(before);"),
            ("    next = ring.take();\n", "    next = ring.take();\n    ring.give_back(values);\n"),
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
        (("        if (query_row >= job.tokens) continue;\n", ""),),
    ),
    "lanes of an extra warp give keys back before others look": (
        SMALL,
        (("        __syncwarp();\n        ring.give_back(keys);", "        ring.give_back(keys);"),),
    ),
    "a ring of three stages never moves on": (
        replace(SMALL, stages=3),
        (('static_assert(STAGES >= 4, "the ring would never move on");\n', ""),),
    ),
    "what extra warps leave is read before it is there": (EXTRA, (("    extra_sync();\n", ""),)),
    "the first extra warp adds for other queries": (EXTRA, (("sum * own[i % 2]", "sum * own[i / 2 % 2]"),)),
    "extra warps aren't waited for": (EXTRA, ((" + (tile.extra > 0 ? EXTRA_WARPS : 0)", ""),)),
    "padding counts as keys": (BEYOND, (("if (key >= job.rest) scores[i] = NOTHING;", ""),)),
    "results keep their old scale": (EXTRA, (("            total[half] *= shrink;\n", ""),)),
    "values are 8 rows further on": (BEYOND, (("16 * ROW_BYTES >> 4", "8 * ROW_BYTES >> 4"),)),
    "barriers lie where extra warps leave what they have": (
        EXTRA,
        (("full = partials + PARTIAL_BYTES", "full = partials"),),
    ),
    "barriers are used before they are made": (BEYOND, (("    __syncthreads();\n", ""),)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_finds_a_planted_bug(bug: str) -> None:
    case, edits = BUGS[bug]
    assert any(wrong(case, seed, edits) for seed in range(8))
