"""How implementations are found, and why one can't be used."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
import torch

from fasteomt.errors import UnsupportedError
from fasteomt.ops import implementation
from fasteomt.ops.linear import Problem
from fasteomt.ops.target import CPU, Target

PROBLEM = Problem(64, 64, 64, torch.bfloat16)


def test_found_by_name() -> None:
    assert implementation("linear", "library", CPU, PROBLEM).__name__ == "fasteomt.ops.linear.library"


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("magic", CPU, "no implementation 'magic': choose one of reference, library, fused, cute, cuda"),
        ("cuda", CPU, "implementation 'cuda' on cpu: "),
        ("cuda", Target.named("sm_120"), "implementation 'cuda' on sm_120: "),
    ],
)
def test_what_cannot_be_used_is_said(name: str, target: Target, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        implementation("linear", name, target, PROBLEM)


@pytest.mark.parametrize(
    ("op", "name", "module", "said"),
    [
        ("rope", "fused", "triton", r"needs package 'triton': pip install triton"),
        ("linear", "cute", "quack", r"needs package 'quack-kernels': pip install 'fasteomt\[kernels\]'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, op: str, name: str, module: str, said: str
) -> None:
    real = builtins.__import__

    def without(wanted: str, *arguments: Any, **named: Any) -> Any:
        if wanted.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named '{wanted}'", name=wanted)
        return real(wanted, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, f"fasteomt.ops.{op}.{name}", raising=False)
    try:
        with pytest.raises(UnsupportedError, match=said):
            implementation(op, name, Target.named("sm_90"), PROBLEM)
    finally:
        sys.modules.pop(f"fasteomt.ops.{op}.{name}", None)


def test_targets_have_names() -> None:
    from fasteomt.errors import InputError

    assert Target.named("sm_90").sm == 90 and CPU.sm == 0
    with pytest.raises(InputError, match="unknown architecture 'sm_9': choose one of cpu, sm_80"):
        Target.named("sm_9")
    assert Target.of(torch.device("cpu")) == CPU
