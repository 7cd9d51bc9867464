"""Muon against torch's own, and its orthogonalisation against the definition."""

from __future__ import annotations

import pytest
import torch

from fasteomt.train.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 24, 8), (2, 8, 24)])
def test_orthogonalised_keeps_directions_and_levels_singular_values(shape) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    found = u.mT @ orthogonalised(x).float() @ vh.mT
    values = found.diagonal(dim1=-2, dim2=-1)
    assert s.max() / s.min() > 1.8
    assert values.min() > 0.5
    assert values.max() < 1.3
    assert (found - torch.diag_embed(values)).abs().max() < 0.1


def test_steps_are_those_of_torch() -> None:
    torch.manual_seed(0)
    ours = [torch.randn(16, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    muon = Muon(ours, torch.tensor(0.02), momentum=0.9, weight_decay=0.1)
    reference = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(5):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        muon.step()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            mine, other, rtol=0.02, atol=2e-3
        )  # bfloat16 inside, summed in other orders


def test_parts_are_matrices_of_their_own() -> None:
    torch.manual_seed(0)
    whole = torch.randn(24, 8, requires_grad=True)
    parts = [part.clone().requires_grad_() for part in whole.detach().chunk(3)]
    grad = torch.randn(24, 8) * torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(8)[:, None]
    whole.grad = grad
    for part, g in zip(parts, grad.chunk(3), strict=True):
        part.grad = g.clone()
    Muon([{"params": [whole], "parts": 3}], torch.tensor(0.1)).step()
    Muon(parts, torch.tensor(0.1)).step()
    torch.testing.assert_close(whole.detach(), torch.cat(parts).detach())
