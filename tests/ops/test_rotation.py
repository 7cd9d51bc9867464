"""Reordered features, turned pair by pair, give the scores of the reference model's RoPE."""

from __future__ import annotations

import torch

from fasteomt.model.reference import apply_rope, rope_periods, rope_tables
from fasteomt.ops.rotation import Rotation, interleave


def test_scores_are_the_references() -> None:
    heads, dim, extras = 2, 8, 3
    tables = rope_tables(rope_periods(dim), 2, 3)
    rotation = Rotation.of(tables)
    x = torch.randn(extras + 6, 16)
    weights = torch.randn(2, heads * dim, 16)
    q, k = ((x @ w.T).unflatten(-1, (heads, dim)).transpose(0, 1) for w in weights)
    expected = apply_rope(q, *tables) @ apply_rope(k, *tables).mT

    def turned(w: torch.Tensor) -> torch.Tensor:
        pairs = (x @ interleave(w, heads).T).unflatten(-1, (heads, dim // 2, 2))
        a, b = pairs[extras:, ..., 0], pairs[extras:, ..., 1]
        sin, cos = rotation.sin[:, None], rotation.cos[:, None]
        pairs[extras:] = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return pairs.flatten(-2).transpose(0, 1)

    torch.testing.assert_close(turned(weights[0]) @ turned(weights[1]).mT, expected)


def test_interleaving_biases_too() -> None:
    assert interleave(torch.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
