"""The Hopper GEMM on a Hopper GPU: all epilogues and configurations against fp32, and graph capture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fasteomt.ops.linear import Normed, Problem, cuda, parts_for, reference
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu

BF16, FP16 = torch.bfloat16, torch.float16
ROWS = {
    "two crops": Rows(2, 1024, 5),
    "three crops": Rows(3, 1024, 5),
    "joint": Rows(2, 1024, 105),
    "patch 32": Rows(2, 256, 5),
    "640 px": Rows(2, 1600, 5),
}
LAYERS = {
    "L qkv": (3072, 1024, "rope"),
    "L proj": (1024, 1024, "residual"),
    "L fc1": (4096, 1024, "gelu"),
    "L fc2": (1024, 4096, "residual"),
    "B qkv": (2304, 768, "rope"),
    "B proj": (768, 768, "residual"),
    "T fc1": (768, 192, "gelu"),
    "plain": (1024, 768, ""),
}


@pytest.fixture(scope="module", autouse=True)
def target() -> Target:
    found = Target.of(torch.device("cuda", torch.cuda.current_device()))
    if found.sm != 90:
        pytest.skip("needs a Hopper GPU")
    return found


class Case:
    """Random inputs, `run`'s arguments, and the exact result."""

    def __init__(self, rows: Rows, layer: str, dtype: torch.dtype) -> None:
        n, k, self.epilogue = LAYERS[layer]
        torch.manual_seed(0)
        head_dim = 64 if self.epilogue == "rope" else 0
        self.problem = Problem(rows.total, n, k, dtype, self.epilogue, head_dim)
        self.x = torch.randn(rows.total, k, device="cuda").to(dtype)
        self.weight = (torch.randn(n, k, device="cuda") / k**0.5).to(dtype)
        self.bias = torch.randn(n, device="cuda")
        angles = torch.rand(rows.patches, 32, device="cuda") * 6
        self.options = {
            "rows": rows,
            "epilogue": self.epilogue,
            "rotation": Rotation(angles.sin(), angles.cos()) if head_dim else None,
            "rotated": n // 3 * 2 if head_dim else 0,
            "scale": torch.rand(n, device="cuda") if self.epilogue == "residual" else None,
        }
        self.stream = torch.randn(rows.total, n, device="cuda")
        self.exact = self.stream.clone()
        reference.run(self.x, self.weight, self.bias, self.exact, **self.options)  # type: ignore[arg-type]

    def out(self) -> Tensor:
        return (
            self.stream.clone() if self.epilogue == "residual" else torch.empty_like(self.stream).to(self.x)
        )

    def run(self, out: Tensor, config: cuda.Config | None = None) -> None:
        cuda.run(self.x, self.weight, self.bias, out, config=config, **self.options)  # type: ignore[arg-type]

    def error(self, out: Tensor) -> float:
        """Relative to rounding the product's exact result to the 16-bit type."""
        product = self.exact - self.stream if self.epilogue == "residual" else self.exact
        rounding = (product.to(self.x.dtype).float() - product).norm()
        return float((out.float() - self.exact).norm() / rounding)


@pytest.fixture(autouse=True)
def exact_fp32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rows", ROWS)
def test_equals_the_reference_up_to_rounding(rows: str, layer: str, dtype: torch.dtype) -> None:
    case = Case(ROWS[rows], layer, dtype)
    out = case.out()
    case.run(out)
    assert case.error(out) < 2


@pytest.mark.parametrize("layer", ["L qkv", "L fc1", "L fc2"])
@pytest.mark.parametrize("rows", ["two crops", "joint"])
def test_every_candidate_computes_the_same(rows: str, layer: str, target: Target) -> None:
    case = Case(ROWS[rows], layer, BF16)
    for config in cuda.candidates(target, case.problem):
        out = case.out()
        case.run(out, config)
        assert case.error(out) < 2, config


def test_results_may_have_another_format(target: Target) -> None:
    case = Case(ROWS["two crops"], "L qkv", BF16)
    for config in cuda.candidates(target, replace(case.problem, out_dtype=FP16)):
        out = torch.full_like(case.stream, torch.nan).to(FP16)
        case.run(out, config)
        rounding = (case.exact.half().float() - case.exact).norm()
        assert float((out.float() - case.exact).norm()) < 2 * float(rounding), config


def test_writes_no_other_rows() -> None:
    case = Case(Rows(1, 256, 5), "plain", BF16)
    room = torch.full((case.problem.m + 128, case.problem.n), 7.0, device="cuda", dtype=BF16)
    case.run(room[64:-64])
    assert case.error(room[64:-64]) < 2
    assert (room[:64] == 7).all() and (room[-64:] == 7).all()


def test_no_bias_and_no_scale() -> None:
    case = Case(Rows(1, 256, 5), "B proj", BF16)
    out = case.stream.clone()
    cuda.run(case.x, case.weight, None, out, epilogue="residual")
    exact = case.stream + case.x.float() @ case.weight.float().T
    assert (out - exact).norm() < 1e-4 * exact.norm()


def test_a_captured_launch_works_on_new_inputs() -> None:
    case = Case(Rows(2, 1024, 5), "L fc1", BF16)
    out = case.out()
    case.run(out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run(out)
    other = Case(Rows(2, 1024, 5), "L fc1", BF16)
    other.x.neg_()
    case.x.copy_(other.x)
    graph.replay()
    expected = case.out()
    case.run(expected)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("rows", ["two crops", "joint", "three crops"])
@pytest.mark.parametrize("layer", ["L proj", "L fc2", "B proj"])
def test_a_norm_follows_the_stream(rows: str, layer: str, target: Target) -> None:
    case = Case(ROWS[rows], layer, BF16)
    problem = replace(case.problem, epilogue="norm")
    weight, bias = torch.randn(2, problem.n, device="cuda")
    normal = torch.nn.functional.layer_norm(case.exact, (problem.n,), weight, bias, 1e-6)
    rounding = float((normal.to(BF16).float() - normal).norm() / normal.norm())
    options = case.options | {"epilogue": "norm"}
    for config in cuda.candidates(target, problem):
        parts = parts_for(problem.m, problem.n, torch.device("cuda"))
        for _ in range(3):  # launches are told from one another
            out, normed = case.stream.clone(), torch.full_like(case.stream, torch.nan).to(BF16)
            norm = Normed(normed, weight, bias, 1e-6, parts)
            cuda.run(case.x, case.weight, case.bias, out, config=config, norm=norm, **options)  # type: ignore[arg-type]
            assert case.error(out) < 2, config
            assert float((normed.float() - normal).norm() / normal.norm()) < 1.2 * rounding, config
