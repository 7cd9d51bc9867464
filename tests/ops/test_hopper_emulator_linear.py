"""The Hopper GEMM's source run by an emulator of Hopper; `hopper_emulator` says what that can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hopper_emulator import Edit, emulator, fault_of, needs_compiler

from fasteomt.ops.linear import Normed, cuda, parts_for, reference
from fasteomt.ops.linear.cuda import Config
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows

BF16, FP16 = torch.bfloat16, torch.float16

pytestmark = needs_compiler


@dataclass(frozen=True)
class Case:
    """`processors`: of the GPU, few so that a block has several tiles."""

    rows: Rows
    n: int
    k: int
    config: Config
    epilogue: str = ""
    dtype: torch.dtype = BF16
    head_dim: int = 64
    processors: int = 4
    out_dtype: torch.dtype | None = None


# Rows of patches that are whole tiles and of others; odd crops; row tiles that clusters can't share, of up to
# 64 rows and of more; N beyond the last column tile; K beyond the last step; rings longer than K and shorter;
# blocks with no tile, one, and several.
CASES = {
    "rope, two crops": Case(Rows(2, 128, 5), 192, 512, Config(128, 64, 2, 3), "rope"),
    "rope, half tiles": Case(Rows(2, 128, 5), 384, 200, Config(64, 192, 1, 3), "rope", processors=3),
    "rope, heads of 128": Case(Rows(2, 200, 5), 384, 136, Config(128, 128, 2, 2), "rope", head_dim=128),
    "rope, heads of 128, half tiles": Case(
        Rows(1, 200, 5), 384, 136, Config(64, 128, 1, 2), "rope", FP16, head_dim=128
    ),
    "rope, small crops": Case(Rows(5, 16, 7), 96, 512, Config(128, 96, 2, 3), "rope", head_dim=32),
    "rope, joint": Case(Rows(2, 128, 105), 192, 200, Config(128, 192, 1, 4), "rope", processors=3),
    "rope, into FP16": Case(
        Rows(2, 64, 5), 192, 136, Config(64, 64, 1, 3), "rope", processors=3, out_dtype=FP16
    ),
    "gelu, odd crops": Case(Rows(3, 128, 5), 192, 512, Config(128, 64, 2, 3), "gelu", FP16, processors=6),
    "gelu, joint": Case(Rows(2, 128, 105), 160, 400, Config(128, 96, 2, 3), "gelu", processors=6),
    "gelu, fewer rows than a tile": Case(Rows(1, 37, 0), 256, 72, Config(64, 256, 2, 2), "gelu"),
    "gelu, half tiles, shared": Case(Rows(3, 64, 5), 384, 264, Config(64, 128, 2, 4), "gelu", FP16),
    "plain, few columns": Case(Rows(2, 64, 5), 96, 400, Config(128, 64, 2, 4), "", processors=2),
    "plain, widest": Case(Rows(1, 200, 0), 320, 640, Config(64, 256, 2, 2), "", FP16, processors=2),
    "plain, no cluster": Case(Rows(3, 64, 5), 96, 512, Config(64, 96, 1, 4), "", processors=3),
    "residual, joint": Case(Rows(3, 128, 105), 192, 400, Config(128, 128, 2, 4), "residual", FP16),
    "residual, no cluster": Case(Rows(2, 128, 5), 160, 264, Config(128, 64, 1, 4), "residual"),
    "residual, half tiles": Case(Rows(2, 128, 5), 320, 400, Config(64, 256, 1, 4), "residual", processors=3),
    "residual, half tiles, shared": Case(
        Rows(3, 64, 5), 192, 136, Config(64, 64, 2, 4), "residual", FP16, processors=2
    ),
    "residual, ring shorter than K": Case(
        Rows(3, 64, 5), 192, 136, Config(64, 192, 1, 3), "residual", processors=1
    ),
    "residual, short K": Case(Rows(3, 64, 5), 192, 72, Config(64, 96, 1, 3), "residual", processors=2),
    "rope, split rows": Case(Rows(2, 128, 5), 384, 264, Config(128, 128, 2, 3, True), "rope"),
    "rope, split columns": Case(Rows(2, 64, 5), 192, 136, Config(64, 192, 1, 3, True), "rope", head_dim=32),
    "gelu, split rows": Case(
        Rows(3, 128, 5), 320, 264, Config(128, 256, 1, 3, True), "gelu", FP16, processors=3
    ),
    "gelu, split columns": Case(Rows(2, 64, 5), 160, 264, Config(64, 128, 2, 3, True), "gelu", processors=2),
    "residual, split rows": Case(
        Rows(3, 128, 5), 320, 200, Config(128, 256, 1, 4, True), "residual", processors=3
    ),
    "residual, split rows, shared": Case(
        Rows(3, 128, 105), 192, 72, Config(128, 96, 2, 4, True), "residual", FP16, processors=2
    ),
    "residual, split columns": Case(
        Rows(2, 128, 5), 320, 136, Config(64, 256, 1, 4, True), "residual", processors=3
    ),
    "norm, split rows": Case(Rows(2, 128, 105), 320, 136, Config(128, 160, 1, 4, True), "norm", FP16),
    "norm, split columns": Case(Rows(2, 128, 5), 320, 136, Config(64, 256, 1, 4, True), "norm", processors=3),
    "norm, one tile a block": Case(Rows(2, 64, 5), 256, 136, Config(64, 128, 1, 3), "norm", processors=6),
    "norm, several tiles a block": Case(
        Rows(3, 64, 5), 320, 72, Config(64, 64, 1, 4), "norm", FP16, processors=6
    ),
    "norm, two columns a row": Case(Rows(2, 128, 5), 192, 200, Config(64, 96, 1, 4), "norm"),
    "norm, whole tiles": Case(Rows(2, 128, 105), 160, 136, Config(128, 64, 1, 4), "norm", FP16),
    "norm, half tiles at the end": Case(
        Rows(3, 128, 5), 320, 72, Config(128, 64, 1, 4), "norm", processors=5
    ),
    "norm, rows left over": Case(
        Rows(4, 128, 5), 320, 72, Config(128, 160, 1, 4, True), "norm", processors=6
    ),
    "norm, whole rows": Case(Rows(1, 37, 0), 192, 72, Config(128, 192, 1, 4), "norm", processors=2),
}


class Inputs:
    """Random ones for a case, `run`'s options, and the fp32 result."""

    def __init__(self, case: Case) -> None:
        m, n, k = case.rows.total, case.n, case.k
        torch.manual_seed(0)
        self.x = torch.randn(m, k).to(case.dtype)
        self.weight = (torch.randn(n, k) / k**0.5).to(case.dtype)
        self.bias = torch.randn(n) if case.epilogue else None
        adds = case.epilogue in ("residual", "norm")
        angles = torch.randn(case.rows.patches, case.head_dim // 2)
        self.options: dict[str, Any] = {
            "rows": case.rows,
            "epilogue": case.epilogue,
            "rotation": Rotation(angles.sin(), angles.cos()),
            "rotated": n // case.head_dim * 2 // 3 * case.head_dim,
            "scale": torch.randn(n) if adds else None,
        }
        self.dtype = torch.float32 if adds else case.out_dtype or case.dtype
        self.stream = torch.randn(m, n) + torch.randn(m, 1)
        exact, self.normed = self.options, None
        if case.epilogue == "norm":
            out, wanted = torch.full((m, n), torch.nan, dtype=case.dtype), torch.empty(m, n)
            given = torch.randn(n), torch.randn(n), 1e-5, parts_for(m, n, torch.device("cpu"))
            self.options, exact = (self.options | {"norm": Normed(one, *given)} for one in (out, wanted))
            self.normed = out, wanted
        self.exact = self.stream.clone()
        reference.run(self.x, self.weight, self.bias, self.exact, **exact)


def wrong(case: Case, seed: int = 0, bug: tuple[Edit, ...] = (), times: int = 1) -> str:
    """What is wrong with the kernel's result after so many launches on the same inputs, or ''."""
    inputs = Inputs(case)
    given = inputs.x, inputs.weight, inputs.bias
    with emulator().in_place_of_gpu(case.processors, seed, bug):
        for _ in range(times):
            out = inputs.stream.to(inputs.dtype, copy=True)
            fault = fault_of(lambda out: cuda.run(*given, out, config=case.config, **inputs.options), out)
            if fault:
                return fault
            if inputs.normed is not None and not _close(*inputs.normed):
                return "the norm is wrong"
    return "" if _close(out, inputs.exact) else "results are wrong"


def _close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """But for rounding of the output, and sums in another order."""
    half_ulp = torch.finfo(found.dtype).eps / 2
    return torch.allclose(found.float(), exact, rtol=half_ulp + 2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_reference_does(name: str) -> None:
    assert not wrong(CASES[name])


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("norm")])
def test_launches_tell_their_parts_from_those_of_the_last_one(name: str) -> None:
    assert not wrong(CASES[name], seed=1, times=3)


TURNS, NORM = CASES["gelu, odd crops"], CASES["norm, two columns a row"]
ADDS = CASES["residual, joint"]
BUGS: dict[str, tuple[Case, tuple[Edit, ...]]] = {
    "a stage is given back while it is read": (
        TURNS,
        (
            (
                "if (step > 0 && lane < CLUSTER) barrier_arrive(finished, lane);",
                "if (lane < CLUSTER) barrier_arrive(empty + 8 * at.stage, lane);",
            ),
            (
                "multiply_wait(acc[half]);\n    if (lane < CLUSTER) barrier_arrive(finished, lane);",
                "multiply_wait(acc[half]);",
            ),
        ),
    ),
    "a stage is given back twice": (
        TURNS,
        (("if (step > 0 && lane < CLUSTER) barrier_arrive", "if (lane < CLUSTER) barrier_arrive"),),
    ),
    "a stage is given back to the own block only": (
        TURNS,
        (
            (
                "if (step > 0 && lane < CLUSTER) barrier_arrive(finished, lane)",
                "if (step > 0 && lane < 1) barrier_arrive(finished, lane)",
            ),
        ),
    ),
    "the other block's readers aren't waited for": (TURNS, (("CLUSTER * READERS);", "READERS);"),)),
    "the first round waits for readers": (
        TURNS,
        (
            (
                "fetch_weight = [&](int step, const Cursor& to) {",
                "fetch_weight = [&](int step, Cursor to) { to.parity ^= 1;",
            ),
        ),
    ),
    "fewer bytes are expected than come": (
        TURNS,
        (("halves * HALF_BYTES + CLUSTER * SHARE_BYTES", "halves * HALF_BYTES + SHARE_BYTES"),),
    ),
    "a descriptor's stride is half": (TURNS, (("STRIDE = (1024ull >> 4)", "STRIDE = (512ull >> 4)"),)),
    "barriers are used before they are made": (TURNS, (("    }\n    meet_cluster();\n", "    }\n"),)),
    "a block ends before its neighbour": (TURNS, (("    if (CLUSTER > 1) meet_cluster();\n", ""),)),
    "blocks that share rows take the same columns": (
        TURNS,
        (("next_alone / job.alone * CLUSTER + rank", "next_alone / job.alone * CLUSTER"),),
    ),
    "who isn't next looks at the ring": (
        TURNS,
        (
            (
                "        if (follows) wait_for_other(group);\n        const bool whole",
                "        const bool whole",
            ),
        ),
    ),
    "rows beyond a tile are written": (TURNS, (("return row + 8 * eight < rows;", "return true;"),)),
    "lanes that skip a tile give its stages back before others look": (
        TURNS,
        (
            (
                "                __syncwarp();\n                if (lane < CLUSTER) barrier_arrive(empty",
                "                if (lane < CLUSTER) barrier_arrive(empty",
            ),
        ),
    ),
    "results are read before all lanes have written them": (
        TURNS,
        (("        }\n        __syncwarp();\n#pragma", "        }\n#pragma"),),
    ),
    "the other warpgroup is told before the stream is there": (
        CASES["residual, ring shorter than K"],
        (
            (
                "            barrier_wait(full + 8 * stream.stage, stream.parity);\n",
                "",
            ),
        ),
    ),
    "the stream isn't waited for": (
        ADDS,
        (("        barrier_wait(full + 8 * cursor.stage, cursor.parity);\n", ""),),
    ),
    "the stream's stage is given back while others read it": (
        ADDS,
        (("        __syncwarp();\n        if (at.lane < CLUSTER)", "        if (at.lane < CLUSTER)"),),
    ),
    "the stream's stage is given back while it may still be loaded": (
        ADDS,
        (("        fence_async();\n", ""),),
    ),
    "a warpgroup multiplies the other's rows": (
        CASES["residual, split rows"],
        (("own_a = HAS_ROWS ? group * HALF_BYTES : 0;", "own_a = 0;"),),
    ),
    "a warpgroup multiplies the other's columns": (
        CASES["residual, split columns"],
        (("(HAS_COLUMNS ? group * OWN_N * BLOCK_K * 2 : 0);", "0;"),),
    ),
    "a warpgroup adds the other's stream": (
        CASES["residual, split rows"],
        (("(SPLIT ? threadIdx.x / 128 * BOX_BYTES : 0)", "0"),),
    ),
    "a part that the other warpgroup hasn't read is given back": (
        CASES["residual, split columns"],
        (("READERS = 4 * PARTS;", "READERS = 4;"),),
    ),
    "the stream is read without its swizzle": (ADDS, ((" ^ (at.row % 8);", ";"),)),
    "a vector is read before all lanes have spread it": (
        NORM,
        (("            }\n            __syncwarp();\n", "            }\n"),),
    ),
    "the others' parts aren't waited for": (
        NORM,
        (("wait_for_parts(parts, launch, i < 4", "wait_for_parts(parts, launch - 1, i < 4"),),
    ),
    "launches have the same number": (NORM, ((" / OWN_N) + 1 : 0;", " / OWN_N) : 0;"),)),
    "only half of a row's lanes add": (NORM, (("row[eight].merge_with_lane(2);", ""),)),
    "all parts count as whole tiles": (
        CASES["norm, several tiles a block"],
        (("min(OWN_N, job.columns - i * OWN_N);", "OWN_N + i;"),),
    ),
    "who waits comes before who is waited for": (
        CASES["norm, several tiles a block"],
        (
            (
                "NORM ? next_together / job.column_tiles : next_together % job.together;",
                "next_together % job.together;",
            ),
            (
                "NORM ? next_together % job.column_tiles : next_together / job.together;",
                "next_together / job.together;",
            ),
        ),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_finds_a_planted_bug(bug: str) -> None:
    case, edits = BUGS[bug]
    assert any(wrong(case, seed, edits, 1 + ("launches" in bug)) for seed in range(16))
