"""What runs on a CPU against the model's own attention, with rotary positions through the op `rope`."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from fasteomt.model.reference import Attention, rope_periods, rope_tables
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.attention import IMPLEMENTATIONS, Problem, cute, library, reference
from fasteomt.ops.rope import reference as rope
from fasteomt.ops.rotation import Rotation, interleave
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import CPU, Target

ON_CPU = [reference, library]


@pytest.mark.parametrize("module", ON_CPU)
@pytest.mark.parametrize("rows", [Rows(1, 16, 5), Rows(2, 16, 5), Rows(3, 16, 9)])
def test_equals_the_models_attention(module: ModuleType, rows: Rows, small_spec: ModelSpec) -> None:
    torch.manual_seed(0)
    attention = Attention(small_spec)
    attention.proj = torch.nn.Identity()  # type: ignore[assignment]  # only the heads' results are compared
    heads, dim = small_spec.num_heads, small_spec.embed_dim
    tables = rope_tables(rope_periods(dim // heads), 4, 4)
    # The model's order is extras first; odd crops have it already, even ones are rolled.
    x = torch.randn(rows.crops, rows.tokens, dim)
    with torch.no_grad():
        expected = attention(x, tables)
        shift = [-rows.extras if crop % 2 == 0 else 0 for crop in range(rows.crops)]
        qkv = attention.qkv(
            torch.stack([crop.roll(s, 0) for crop, s in zip(x, shift, strict=True)]).flatten(0, 1)
        )
        q, k, v = qkv.chunk(3, dim=1)
        qkv = torch.cat([interleave(q.mT, heads).mT, interleave(k.mT, heads).mT, v], dim=1)
        rope.run(qkv, Rotation.of(tables), 2 * dim, rows)
        out = torch.empty(rows.total, dim) if module.WRITES_OUT else None
        found = module.run(qkv, out, heads, rows)
    assert found.shape == (rows.total, dim)
    assert out is None or found is out
    back = torch.stack(
        [crop.roll(-s, 0) for crop, s in zip(found.unflatten(0, (rows.crops, -1)), shift, strict=True)]
    )
    torch.testing.assert_close(back, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_library_rounds_no_worse_than_its_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = Rows(2, 16, 5)
    qkv = torch.randn(rows.total, 3 * 128).to(dtype)
    truth = reference.run(qkv.double(), torch.empty(rows.total, 128), 2, rows)
    found = library.run(qkv, None, 2, rows)
    assert found.dtype == dtype and found.is_contiguous()
    assert (found - truth).norm() < 2 * torch.finfo(dtype).eps * truth.norm()


def test_says_what_it_cannot_do() -> None:
    problem = Problem(Rows(2, 16, 5), 2, 64, torch.bfloat16)
    turned = Problem(Rows(2, 16, 5), 2, 64, torch.bfloat16, rope=True)
    halved = Problem(Rows(2, 16, 5), 2, 64, torch.bfloat16, half_accumulate=True)
    assert IMPLEMENTATIONS == ("reference", "library", "fused", "cute", "cuda")
    for module in (reference, library):
        assert module.unsupported(CPU, problem) is None
        assert "rope" in (module.unsupported(CPU, turned) or "")
        assert module.unsupported(CPU, halved)
    assert "library" in (cute.unsupported(CPU, problem) or "")
    assert "rope" in (cute.unsupported(Target.named("sm_90"), turned) or "")
    assert "sm_80" in (library.unsupported(Target("sm_75"), problem) or "")


def test_fused_refuses_what_its_kernels_do_not_do() -> None:
    fused = pytest.importorskip("fasteomt.ops.attention.fused")
    sm_120 = Target.named("sm_120")
    good = Problem(Rows(2, 1024, 5), 16, 64, torch.float16, rope=True, half_accumulate=True)
    assert fused.unsupported(sm_120, good) is None
    assert "library" in fused.unsupported(CPU, good)
    assert "float16" in fused.unsupported(sm_120, Problem(Rows(2, 16, 5), 2, 64, torch.float32))
    wide = Problem(Rows(2, 1024, 5), 16, 128, torch.float16, rope=True)
    assert fused.unsupported(Target.named("sm_90"), wide) is None
    assert "rope" in fused.unsupported(sm_120, wide)
    assert "head_dim" in fused.unsupported(sm_120, Problem(Rows(2, 16, 5), 2, 32, torch.float16))
    assert fused.unsupported(sm_120, Problem(Rows(2, 16, 5), 2, 64, torch.bfloat16, half_accumulate=True))
