"""The Hopper GEMM's source run by an emulator of Hopper; `hopper_emulator` says what that can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hopper_emulator import Edit, emulator, fault_of, needs_compiler

from fasteomt.ops.linear import PART, Folded, HandedOn, cuda, reference
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
    norm: str = ""


# Rows of patches that are whole tiles and of others; odd crops; row tiles that clusters can't share, of up to
# 64 rows and of more; N beyond the last column tile; K beyond the last step; rings longer than K and shorter.
CASES = {
    "rope, two crops": Case(Rows(2, 128, 5), 192, 512, Config(64, 2, 2, 3), "rope"),
    "rope, heads cross tiles": Case(Rows(1, 256, 5), 384, 136, Config(160, 2, 0, 2), "rope", processors=6),
    "rope, heads of 128": Case(Rows(2, 200, 5), 384, 136, Config(128, 2, 0, 2), "rope", head_dim=128),
    "rope, heads of 128 cross tiles": Case(
        Rows(1, 200, 5), 384, 136, Config(192, 1, 0, 2), "rope", FP16, head_dim=128
    ),
    "rope, small crops": Case(Rows(5, 16, 7), 96, 512, Config(224, 2, 2, 3), "rope", head_dim=32),
    "gelu, odd crops": Case(Rows(3, 128, 5), 192, 512, Config(64, 2, 2, 3), "gelu", FP16, processors=6),
    "gelu, joint": Case(Rows(2, 128, 105), 160, 400, Config(96, 2, 1, 3), "gelu", processors=6),
    "gelu, fewer rows than a tile": Case(Rows(1, 37, 0), 256, 72, Config(256, 2, 0, 2), "gelu"),
    "residual, joint": Case(Rows(3, 128, 105), 192, 400, Config(128, 2, 2, 3), "residual", FP16),
    "residual, no cluster": Case(Rows(2, 128, 5), 160, 264, Config(64, 1, 0, 4), "residual"),
    "gelu, taking turns": Case(
        Rows(3, 128, 5), 192, 512, Config(64, 2, 0, 3, alternate=True), "gelu", FP16, processors=6
    ),
    "rope, taking turns": Case(
        Rows(2, 128, 105), 192, 200, Config(96, 1, 0, 5, alternate=True), "rope", processors=3
    ),
    "plain, taking turns, few columns": Case(
        Rows(2, 64, 5), 96, 400, Config(64, 2, 0, 4, alternate=True), "", processors=2
    ),
    "residual, two blocks a processor": Case(
        Rows(3, 128, 5), 160, 264, Config(128, 1, 0, 3, resident=2), "residual", processors=2
    ),
    "residual, taking turns": Case(
        Rows(3, 128, 5), 192, 264, Config(96, 2, 0, 3, alternate=True), "residual", FP16
    ),
    "residual, split": Case(Rows(2, 128, 5), 192, 400, Config(128, 1, 0, 4, block_m=64), "residual"),
    "residual, split, shared": Case(
        Rows(3, 64, 5), 192, 136, Config(64, 2, 0, 4, block_m=64), "residual", FP16, processors=2
    ),
    "gelu, split": Case(Rows(2, 128, 5), 256, 200, Config(256, 1, 0, 4, block_m=64), "gelu", processors=3),
    "rope, split": Case(Rows(2, 64, 7), 192, 200, Config(192, 1, 0, 4, block_m=64), "rope", processors=3),
    "rope, two blocks a processor": Case(
        Rows(2, 128, 5), 192, 200, Config(96, 1, 0, 3, resident=2), "rope", FP16, processors=2
    ),
    "rope, half tiles taking turns": Case(
        Rows(2, 128, 5), 384, 200, Config(192, 1, 0, 3, alternate=True, block_m=64), "rope", processors=3
    ),
    "gelu, half tiles taking turns, shared": Case(
        Rows(3, 64, 5), 384, 264, Config(128, 2, 0, 4, alternate=True, block_m=64), "gelu", FP16
    ),
    "gelu, norm folded": Case(Rows(2, 128, 5), 192, 192, Config(64, 2, 0, 3), "gelu", FP16, norm="folded"),
    "rope, norm folded, half tiles taking turns": Case(
        Rows(2, 128, 5),
        384,
        320,
        Config(192, 1, 0, 3, alternate=True, block_m=64),
        "rope",
        processors=3,
        norm="folded",
    ),
    "gelu, norm folded, taking turns": Case(
        Rows(3, 128, 5), 192, 128, Config(96, 2, 0, 3, alternate=True), "gelu", norm="folded"
    ),
    "plain, norm folded, split": Case(
        Rows(2, 64, 5), 128, 384, Config(128, 1, 0, 4, block_m=64), "", FP16, processors=3, norm="folded"
    ),
    "residual handed on": Case(
        Rows(2, 128, 5), 192, 200, Config(64, 2, 0, 3), "residual", FP16, norm="handed on"
    ),
    "residual handed on, split": Case(
        Rows(2, 128, 5),
        320,
        200,
        Config(256, 1, 0, 4, block_m=64),
        "residual",
        processors=3,
        norm="handed on",
    ),
    "residual handed on, two blocks a processor": Case(
        Rows(2, 128, 5),
        192,
        136,
        Config(128, 1, 0, 3, resident=2),
        "residual",
        processors=2,
        norm="handed on",
    ),
    "residual handed on, taking turns": Case(
        Rows(3, 128, 5), 192, 200, Config(64, 2, 0, 3, alternate=True), "residual", FP16, norm="handed on"
    ),
    "plain, widest": Case(Rows(1, 200, 0), 320, 640, Config(256, 2, 2, 2), "", FP16, processors=2),
    "plain, no cluster": Case(Rows(3, 64, 5), 96, 512, Config(96, 1, 2, 4), "", processors=3),
}


class Inputs:
    """Random ones for a case, `run`'s options, and the fp32 result."""

    def __init__(self, case: Case) -> None:
        m, n, k = case.rows.total, case.n, case.k
        torch.manual_seed(0)
        self.x = torch.randn(m, k).to(case.dtype)
        self.weight = (torch.randn(n, k) / k**0.5).to(case.dtype)
        self.bias = torch.randn(n) if case.epilogue else None
        angles = torch.randn(case.rows.patches, case.head_dim // 2)
        self.options: dict[str, Any] = {
            "rows": case.rows,
            "epilogue": case.epilogue,
            "rotation": Rotation(angles.sin(), angles.cos()),
            "rotated": n // case.head_dim * 2 // 3 * case.head_dim,
            "scale": torch.randn(n) if case.epilogue == "residual" else None,
        }
        self.stream = torch.randn(m, n)
        if case.norm == "folded":
            rows = (self.x.float() * (1 + 2 * torch.rand(m, 1)) + torch.randn(m, 1)).to(case.dtype)
            parts = torch.empty(m, k // PART, 2)
            reference.hand_on(rows.float(), HandedOn(torch.empty_like(rows), parts))
            self.x = rows
            self.options["norm"] = Folded(parts, self.weight.float().sum(dim=1), 1e-5)
        self.handed_on: HandedOn | None = None
        wanted = self.options
        if case.norm == "handed on":
            found, self.handed_on = (
                HandedOn(
                    torch.full((m, n), torch.nan).to(case.dtype), torch.full((m, n // PART, 2), torch.nan)
                )
                for _ in range(2)
            )
            self.options, wanted = self.options | {"norm": found}, self.options | {"norm": self.handed_on}
        self.exact = self.stream.clone()
        reference.run(self.x, self.weight, self.bias, self.exact, **wanted)


def wrong(case: Case, seed: int = 0, bug: tuple[Edit, ...] = ()) -> str:
    """What is wrong with the kernel's result, or ''."""
    inputs = Inputs(case)
    dtype = torch.float32 if case.epilogue == "residual" else case.dtype
    out, given = inputs.stream.to(dtype), (inputs.x, inputs.weight, inputs.bias)
    with emulator().in_place_of_gpu(case.processors, seed, bug):
        fault = fault_of(lambda out: cuda.run(*given, out, config=case.config, **inputs.options), out)
    if fault:
        return fault
    # Rounding of the output, and sums in another order.
    close = torch.isclose(out.float(), inputs.exact, rtol=torch.finfo(dtype).eps / 2 + 2e-5, atol=2e-5)
    if inputs.handed_on is not None:
        found, wanted = inputs.options["norm"], inputs.handed_on
        ulp = torch.finfo(case.dtype).eps + 2e-5
        if not torch.allclose(found.copy.float(), wanted.copy.float(), rtol=ulp, atol=2e-5):
            return "the copy is wrong"
        if not torch.allclose(found.parts, wanted.parts, rtol=1e-4, atol=1e-4):
            return "moments are wrong"
    return "" if close.all() else f"{(~close).sum()} of {close.numel()} results are wrong"


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_reference_does(name: str) -> None:
    assert not wrong(CASES[name])


SMALL = Case(Rows(3, 128, 5), 192, 512, Config(64, 2, 2, 3))
BUGS: dict[str, tuple[Edit, ...]] = {
    "a stage is given back while it is read": (
        (
            "if (step > start && lane < CLUSTER) barrier_arrive(finished, lane);",
            "if (lane < CLUSTER) barrier_arrive(empty + 8 * at.stage, lane);",
        ),
        (
            "multiply_wait(acc[part]);\n    if (lane < CLUSTER) barrier_arrive(finished, lane);",
            "multiply_wait(acc[part]);",
        ),
    ),
    "a stage is given back twice": (
        ("if (step > start && lane < CLUSTER) barrier_arrive", "if (lane < CLUSTER) barrier_arrive"),
    ),
    "a stage is given back to the own block only": (
        (
            "if (step > start && lane < CLUSTER) barrier_arrive(finished, lane)",
            "if (step > start && lane < 1) barrier_arrive(finished, lane)",
        ),
    ),
    "the other block's readers aren't waited for": (("CLUSTER * READERS);", "READERS);"),),
    "the first round waits for readers": (("to.parity ^ 1);", "to.parity);"),),
    "fewer bytes are expected than come": (
        ("halves * HALF_BYTES + CLUSTER * SHARE_BYTES", "halves * HALF_BYTES + SHARE_BYTES"),
    ),
    "a descriptor's stride is half": (("STRIDE = (1024ull >> 4)", "STRIDE = (512ull >> 4)"),),
    "barriers are used before they are made": (("    }\n    cluster_sync();\n", "    }\n"),),
    "a block ends before its neighbour": (
        ("    // The other block may still arrive at barriers here.\n    cluster_sync();\n", ""),
    ),
    "blocks that share rows take the same columns": (
        ("next_alone / job.alone * CLUSTER + rank", "next_alone / job.alone * CLUSTER"),
    ),
    "who isn't next looks at the ring": (
        ("if (follows || (lags && group == 1)) wait_for_other(group);", ""),
    ),
    "both warpgroups start at the bias": (("SPLIT && group == 1, acc[part]", "false, acc[part]"),),
    "sums are passed before all have been left": (("        meet_other();\n", ""),),
    "only half of a row's lanes add their moments": (
        (
            "            sum += __shfl_xor_sync(~0u, sum, 2);\n            const float mean",
            "            const float mean",
        ),
    ),
    "rows beyond a tile are written": (("return row + 8 * half < rows;", "return true;"),),
    "lanes that skip a tile give its stages back before others look": (
        (
            "                __syncwarp();\n                if (lane < CLUSTER) barrier_arrive(empty",
            "                if (lane < CLUSTER) barrier_arrive(empty",
        ),
    ),
    "results are read before all lanes have written them": (
        ("        }\n        __syncwarp();\n#pragma", "        }\n#pragma"),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_finds_a_planted_bug(bug: str) -> None:
    case = SMALL
    if "isn't next" in bug:
        case = CASES["gelu, taking turns"]
    if "moments" in bug:
        case = CASES["residual handed on"]
    if "bias" in bug or "passed" in bug:
        case = CASES["gelu, split"]
    assert any(wrong(case, seed, BUGS[bug]) for seed in range(8))
