"""The dense layer against the model's own modules, and what its implementations say about themselves."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from fasteomt.errors import UnsupportedError
from fasteomt.model.reference import apply_rope, rope_periods, rope_tables
from fasteomt.ops import implementation
from fasteomt.ops.linear import IMPLEMENTATIONS, Problem, library, reference
from fasteomt.ops.rotation import Rotation, interleave
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import CPU, Target

HEADS, HEAD_DIM = 3, 16
BF16 = torch.bfloat16
H200 = Target.named("sm_90")


def inputs(m: int = 74, n: int = 96, k: int = 48) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)


@pytest.mark.parametrize("module", [reference, library])
@pytest.mark.parametrize("epilogue", ["", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
def test_linear_layer_with_gelu(module: ModuleType, epilogue: str, dtype: torch.dtype) -> None:
    x, weight, bias = inputs()
    wanted = F.linear(x, weight, bias)
    if epilogue:
        wanted = F.gelu(wanted)
    out = torch.empty(74, 96, dtype=dtype)
    bias_dtype = module.BIAS_DTYPE or dtype
    module.run(x.to(dtype), weight.to(dtype), bias.to(bias_dtype), out, epilogue=epilogue)
    error = (out - wanted).norm() / wanted.norm()
    assert error < {torch.float32: 1e-6, torch.float16: 1e-3, BF16: 8e-3}[dtype]


@pytest.mark.parametrize("module", [reference, library])
def test_bias_is_optional(module: ModuleType) -> None:
    x, weight, _ = inputs()
    out = torch.empty(74, 96)
    module.run(x, weight, None, out)
    torch.testing.assert_close(out, F.linear(x, weight))


@pytest.mark.parametrize("rows", [Rows(1, 32, 5), Rows(2, 32, 5), Rows(3, 32, 7)])
def test_rope_is_the_models(rows: Rows) -> None:
    """Interleaved weights and rows in their order give the scores of plain weights and tokens in theirs."""
    dim = HEADS * HEAD_DIM
    x, weight, bias = inputs(rows.total, 3 * dim, dim)
    tables = rope_tables(rope_periods(HEAD_DIM), 4, 8)
    order = torch.stack([interleave(part, HEADS) for part in torch.arange(2 * dim).unflatten(0, (2, dim))])
    order = torch.cat([order.flatten(), torch.arange(2 * dim, 3 * dim)])
    out = torch.empty(rows.total, 3 * dim)
    options = {"rows": rows, "epilogue": "rope", "rotation": Rotation.of(tables), "rotated": 2 * dim}
    reference.run(x, weight[order], bias[order], out, **options)
    for crop in range(rows.crops):
        start, extra = rows.patch_start(crop), rows.extra_start(crop)
        tokens = [*range(extra, extra + rows.extras), *range(start, start + rows.patches)]
        plain = F.linear(x[tokens], weight, bias).unflatten(1, (3, HEADS, HEAD_DIM))
        q, k, v = plain.permute(1, 2, 0, 3)[:, None]
        found_q, found_k, found_v = (
            out[tokens].unflatten(1, (3, HEADS, HEAD_DIM)).permute(1, 2, 0, 3)[:, None]
        )
        scores = apply_rope(q, *tables) @ apply_rope(k, *tables).transpose(-1, -2)
        torch.testing.assert_close(found_q @ found_k.transpose(-1, -2), scores, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found_v, v)


def test_residual_is_added_to_the_stream() -> None:
    x, weight, bias = inputs()
    scale, stream = torch.randn(96), torch.randn(74, 96)
    wanted = stream + scale * F.linear(x, weight, bias)
    reference.run(x, weight, bias, stream, epilogue="residual", scale=scale)
    torch.testing.assert_close(stream, wanted)


def test_every_implementation_names_its_bias_format() -> None:
    for name in IMPLEMENTATIONS:
        try:
            module = importlib.import_module(f"fasteomt.ops.linear.{name}")
        except ImportError:
            continue
        assert module.BIAS_DTYPE is (None if name == "library" else torch.float32)


@pytest.mark.parametrize(
    ("name", "target", "problem", "reason"),
    [
        ("library", CPU, Problem(8, 16, 16, BF16, "rope", 16), "an op of its own"),
        ("library", H200, Problem(8, 16, 16, BF16, "residual"), "an op of its own"),
        ("fused", CPU, Problem(8, 16, 16, BF16), "needs sm_90"),
        ("fused", H200, Problem(8, 16, 16, torch.float32), "float32"),
        ("fused", H200, Problem(8, 20, 16, BF16), "multiples of 16"),
        ("fused", H200, Problem(8, 16, 24, BF16), "multiples of 16"),
        ("fused", H200, Problem(8, 240, 16, BF16, "rope", 80), "head_dim 80"),
        ("cute", Target.named("sm_80"), Problem(8, 16, 16, BF16), "needs sm_90"),
        ("cute", H200, Problem(8, 16, 16, BF16, "residual"), "no epilogue 'residual'"),
    ],
)
def test_what_cannot_be_done_is_said(name: str, target: Target, problem: Problem, reason: str) -> None:
    if name == "fused":
        pytest.importorskip("triton")
    with pytest.raises(UnsupportedError, match=reason):
        implementation("linear", name, target, problem)


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
@pytest.mark.parametrize("epilogue", ["", "gelu", "rope", "residual"])
def test_launch_configurations_fit(arch: str, epilogue: str) -> None:
    fused = pytest.importorskip("fasteomt.ops.linear.fused")
    target = Target.named(arch)
    for head_dim in (64, 128) if epilogue == "rope" else (0,):
        problem = Problem(2058, 3072, 1024, BF16, epilogue, head_dim)
        configs = fused.candidates(target, problem)
        assert 1 < len(configs) <= 12
        for config in configs:
            assert config.shared(problem) <= target.shared_memory
            assert config.block_n % config.part(problem) == 0 and config.part(problem) >= head_dim


@pytest.mark.parametrize(("n", "resident"), [(4096, 1), (3072, 1), (1024, 1), (4096, 2)])
def test_tail_tiles_go_where_there_is_time(n: int, resident: int) -> None:
    """ViT-L, two crops on 132 processors: the tails don't make any program's turn longer."""
    fused = pytest.importorskip("fasteomt.ops.linear.fused")
    config = fused.Config(128, 128, 64, 8, 4, resident)
    tiling = fused.Tiling.of(2058, n, Rows(2, 1024, 5), config, 132)
    full, tails = 16 * tiling.columns, tiling.columns
    load = torch.zeros(tiling.programs)
    for tile in range(full):
        load[tile % tiling.programs] += 1
    longest = load.max()
    for tail in range(tails):
        load[(tiling.first_helper + tail % tiling.helpers) % tiling.programs] += 0.5
    assert load.max() == longest
