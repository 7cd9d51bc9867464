"""A real profile: the model's kernels are found at its sites, forward and backward."""

from __future__ import annotations

import pytest
import torch

from fasteomt.bench.profile import module_sites, profile_sites
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import sites

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)


def test_every_product_of_the_model_has_kernels(small_spec: ModelSpec) -> None:
    model = Eomt(small_spec).to(GPU)
    crops = torch.randn(2, 3, 64, 64, device=GPU)
    with torch.no_grad():
        found = profile_sites(lambda: model(crops), module_sites(small_spec, model), model, GPU)
    by_site = {row.site: row for row in found.sites}
    products = {s.name for s in sites(small_spec) if s.op in ("gemm", "conv") and s.upstream}
    assert products <= by_site.keys()
    assert all(by_site[name].kernel_us > 0 for name in products)
    # RoPE tables, concatenations, GELUs and the einsum are no modules of the reference model.
    assert 0 < found.unattributed_us < found.kernel_us
    assert found.kernel_us == pytest.approx(found.unattributed_us + sum(row.kernel_us for row in found.sites))
    assert 0 < found.busy_share <= 1
    assert found.host_waits == {}


def test_waits_and_the_backward_pass_are_found(small_spec: ModelSpec) -> None:
    model = Eomt(small_spec).to(GPU)
    crops = torch.randn(2, 3, 64, 64, device=GPU)

    def step() -> None:
        masks, classes = model(crops)
        loss = masks.square().mean() + classes.square().mean()
        loss.backward()
        loss.item()

    found = profile_sites(step, module_sites(small_spec, model), model, GPU, nvtx=True)
    phases = {(row.site, row.phase) for row in found.sites}
    for name in ("block.0.qkv", "block.2.fc2", "head.up2.conv"):
        assert {(name, "forward"), (name, "backward")} <= phases
    assert sum(found.host_waits.values()) >= 1
