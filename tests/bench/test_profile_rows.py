"""Profiles as rows: by kind of site, and a reason where there is none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from row_samples import CPU, SMALL, complaints

from fasteomt.bench import profile_rows as profile_rows_module
from fasteomt.bench.profile import Profile, SiteTime, marked_sites
from fasteomt.bench.profile_rows import profile_rows, stack_profile_rows, training_profile_rows
from fasteomt.ops import target
from fasteomt.stacks import get_stack


def test_profile_without_a_gpu_says_so(clip: Path) -> None:
    (row,) = profile_rows(SMALL, "small", CPU, "upstream_predict", clip)
    assert row.median is None
    assert "CUDA" in (row.note or "")
    assert complaints([row]) == []


def test_profile_is_told_by_kind_of_site(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = [("block.0.fc1", 3.0), ("block.11.fc1", 4.0), ("head.class", 1.0)]
    account = Profile(
        sites=tuple(SiteTime(site, "forward", spent, 2) for site, spent in sites),
        unattributed_us=2.0, unattributed_kernels=1, kernel_us=10.0, kernels=7, span_us=20.0, busy_share=0.5,
        host_waits={"cudaStreamSynchronize": 3},
    )  # fmt: skip
    monkeypatch.setattr(profile_rows_module, "profile_sites", lambda *_: account)
    rows = profile_rows(SMALL, "small", CPU, "upstream_script", clip)
    assert {row.phase: row.median for row in rows} == {
        None: 10.0, "block.*.fc1": 7.0, "head.class": 1.0, "outside any site": 2.0
    }  # fmt: skip
    assert rows[0].note == "7 kernels, GPU busy 50%, host waits: 3 cudaStreamSynchronize"
    assert rows[1].note == "4 kernels"
    assert complaints(rows) == []


def test_a_training_step_is_told_by_kind_of_site_and_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    (absent,) = training_profile_rows(SMALL, "small", CPU, "R0_fp32", batch=2)
    assert absent.median is None and "CUDA" in (absent.note or "")
    marked: list[dict[str, str]] = []

    def profiled(call: Any, names: dict[str, str], module: torch.nn.Module, _: torch.device) -> Profile:
        with marked_sites(module, names):
            call()
        marked.append(names)
        sites = (("block.3.fc1", "forward", 3.0), ("block.4.fc1", "backward", 4.0), ("loss", "forward", 1.0))
        return Profile(
            sites=tuple(SiteTime(site, phase, spent, 1) for site, phase, spent in sites),
            unattributed_us=0.0, unattributed_kernels=0, kernel_us=8.0, kernels=3, span_us=16.0,
            busy_share=0.5, host_waits={},
        )  # fmt: skip

    monkeypatch.setattr(profile_rows_module, "profile_sites", profiled)
    rows = training_profile_rows(SMALL, "small", CPU, "R0_fp32", batch=2)
    assert {row.phase: row.median for row in rows} == {
        None: 8.0, "block.*.fc1": 3.0, "block.*.fc1 backward": 4.0, "loss": 1.0
    }  # fmt: skip
    assert rows[0].note == "3 kernels, GPU busy 50%, host waits: none"
    assert {"loss", "block.0.qkv", "block.11.fc2"} <= set(marked[0].values())
    assert complaints(rows) == []


def test_a_network_without_a_gpu_says_so_and_names_its_plan() -> None:
    (row,) = stack_profile_rows(SMALL, "small", CPU, get_stack("bf16"), crops=2)
    assert row.median is None and "CUDA" in (row.note or "")
    assert row.plan == get_stack("bf16").plan(SMALL.spec, target.CPU).hash
    assert complaints([row]) == []


def test_a_networks_groups_are_told_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[str] = []

    def profiled(call: Callable[[], object], _: torch.device) -> Profile:
        def marking(site: str) -> AbstractContextManager[None]:
            marked.append(site)
            return nullcontext()

        with monkeypatch.context() as patched:
            patched.setattr(profile_rows_module, "site_range", marking)
            call()
        sites = tuple(SiteTime(site, "forward", 2.0, 1) for site in dict.fromkeys(marked))
        return Profile(
            sites=sites, unattributed_us=0.0, unattributed_kernels=0, kernel_us=2.0 * len(sites),
            kernels=len(sites), span_us=100.0, busy_share=0.9, host_waits={},
        )  # fmt: skip

    monkeypatch.setattr(profile_rows_module, "profile_call", profiled)
    rows = stack_profile_rows(SMALL, "small", CPU, get_stack("bf16"), crops=2)
    spent = {row.phase: row.median for row in rows}
    assert spent["block.*.fc1+block.*.gelu"] == 2.0 * SMALL.spec.depth
    assert spent["head.einsum"] == 2.0
    assert "8 kernels a block; as `network` runs it, GPU busy 90%" in (rows[0].note or "")
    assert complaints(rows) == []
