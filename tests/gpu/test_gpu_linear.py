"""Every implementation of the dense layer on the GPU, at the models' shapes and beside them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_samples import distance, implementation_or_skip, rotation_of
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.ops.linear import IMPLEMENTATIONS, Problem, reference
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

NAMES = tuple(name for name in IMPLEMENTATIONS if name != "reference")
EPILOGUES = ("", "gelu", "rope", "residual")
# Two crops, without and with queries; one; three, of which the last has no partner; patches of 32 pixels.
ROWS = [
    Rows(2, 1024, 5),
    Rows(2, 1024, 105),
    Rows(1, 1024, 5),
    Rows(3, 1024, 5),
    Rows(3, 1024, 105),
    Rows(4, 256, 5),
    Rows(2, 1600, 5),
]
# N and K of ViT-L's and ViT-B's layers; of "rope" N is queries, keys and values.
SHAPES = {
    "": [(1024, 768), (768, 3072)],
    "gelu": [(4096, 1024), (3072, 768)],
    "rope": [(3072, 1024), (2304, 768), (576, 192)],
    "residual": [(1024, 1024), (1024, 4096), (768, 3072), (192, 192)],
}


def make(rows: Rows | None, problem: Problem) -> tuple[list[Tensor], dict[str, Any]]:
    """x, weight, bias, what is in `out` before, and the options of `run`."""
    torch.manual_seed(0)
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype
    x = torch.randn(m, k, device="cuda").to(dtype)
    weight = (torch.randn(n, k, device="cuda") / k**0.5).to(dtype)
    options: dict[str, Any] = {"epilogue": problem.epilogue, "rows": rows}
    if problem.epilogue == "rope":
        assert rows is not None
        options |= {"rotation": rotation_of(rows, problem.head_dim), "rotated": n // 3 * 2}
    if problem.epilogue == "residual":
        options["scale"] = torch.randn(n, device="cuda")
    before = torch.randn(m, n, device="cuda")
    if problem.epilogue != "residual":
        before = before.to(dtype)
    return [x, weight, torch.randn(n, device="cuda"), before], options


def rounded_like_a_library(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor, options: Any) -> Tensor:
    """The sums in 16 bit, then the epilogue as an op of its own."""
    y = F.linear(x, weight, bias.to(x.dtype))
    out = before.clone()
    eye = torch.eye(y.shape[1], device="cuda")
    reference.run(y, eye, None, out, **options)
    return out


def check(module: ModuleType, rows: Rows | None, problem: Problem, **chosen: Any) -> None:
    (x, weight, bias, before), options = make(rows, problem)
    truth = before.float()
    reference.run(x, weight, bias, truth, **options)
    allowed = 2 * distance(rounded_like_a_library(x, weight, bias, before, options), truth)
    # `out` lies within a larger matrix, whose other rows must stay what they are.
    around = torch.full((problem.m + 128, problem.n), 7.0, dtype=before.dtype, device="cuda")
    out = around[64:-64]
    out.copy_(before)
    module.run(x, weight, bias.to(module.BIAS_DTYPE or x.dtype), out, **options, **chosen)
    assert distance(out, truth) <= allowed
    assert (around[:64] == 7).all() and (around[-64:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_crops(name: str, epilogue: str, rows: Rows, dtype: torch.dtype) -> None:
    head_dim = 64 if epilogue == "rope" else 0
    for n, k in SHAPES[epilogue]:
        problem = Problem(rows.total, n, k, dtype, epilogue, head_dim)
        check(implementation_or_skip("linear", name, problem), rows, problem)


@pytest.mark.parametrize("m", [1, 10, 64, 100, 200, 2048])
@pytest.mark.parametrize("epilogue", ["", "gelu", "residual"])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_rows(name: str, epilogue: str, m: int) -> None:
    for n, k in ((1024, 1024), (160, 1024), (16, 16), (400, 48)):
        problem = Problem(m, n, k, torch.bfloat16, epilogue)
        check(implementation_or_skip("linear", name, problem), None, problem)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_every_launch_configuration(epilogue: str) -> None:
    head_dim = 64 if epilogue == "rope" else 0
    rows = Rows(2, 1024, 5)
    problem = Problem(rows.total, 768, 192, torch.bfloat16, epilogue, head_dim)
    module = implementation_or_skip("linear", "fused", problem)
    for config in module.candidates(Target.of(torch.device("cuda")), problem):
        check(module, rows, problem, config=config)


@pytest.mark.parametrize("epilogue", ["gelu", "rope", "residual"])
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_run_reads_new_input(name: str, epilogue: str) -> None:
    rows = Rows(2, 1024, 5)
    head_dim = 64 if epilogue == "rope" else 0
    problem = Problem(rows.total, 768, 256, torch.bfloat16, epilogue, head_dim)
    module = implementation_or_skip("linear", name, problem)
    (x, weight, bias, before), options = make(rows, problem)
    bias = bias.to(module.BIAS_DTYPE or x.dtype)
    out = before.clone()
    replay = capture(lambda: module.run(x, weight, bias, out, **options))
    x.copy_(x.flip(0))
    wanted = before.clone()
    module.run(x, weight, bias, wanted, **options)
    out.copy_(before)
    replay.replay()
    assert torch.equal(out, wanted)
