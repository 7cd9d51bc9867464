"""The reference against LayerNorm of tokens arranged by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fasteomt.ops.add_norm import reference
from fasteomt.ops.rows import Rows

C, EPS = 24, 1e-5


@pytest.mark.parametrize("scaled", [True, False])
def test_adds_in_place_and_normalises(scaled: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(7, C), torch.randn(C), torch.randn(C)
    delta = torch.randn(7, C).half()
    scale = torch.randn(C) if scaled else None
    expected = x + delta.float() * (scale if scaled else 1)
    out = torch.empty(7, C)
    reference.run(x, delta, weight, bias, EPS, out, scale=scale, x_out=x)
    torch.testing.assert_close(x, expected)
    centred = expected - expected.mean(1, keepdim=True)
    normal = centred / (centred.square().mean(1, keepdim=True) + EPS).sqrt()
    torch.testing.assert_close(out, normal * weight + bias)


def test_the_stream_is_left_alone_where_nothing_is_written_to_it() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(7, C), torch.randn(C), torch.randn(C)
    before, out = x.clone(), torch.empty(7, C, dtype=torch.bfloat16)
    reference.run(x, None, weight, bias, EPS, out)
    assert x.equal(before)
    assert out.equal(F.layer_norm(x, (C,), weight, bias, EPS).bfloat16())


def test_arranges_patches_and_extras_of_crops() -> None:
    torch.manual_seed(0)
    crops, patches, extras = 3, 4, 2
    rows = Rows(crops, patches, extras)
    embedded = torch.randn(crops, patches, C).half()
    initial = torch.randn(extras, C)
    patch = rows.patch_of_row()
    expected, source = torch.empty(rows.total, C), torch.empty(rows.total, dtype=torch.int32)
    for row in range(rows.total):
        crop = row // rows.tokens
        extra = row - rows.extra_start(crop)
        is_patch = bool(patch[row] >= 0)
        expected[row] = embedded[crop, patch[row]].float() if is_patch else initial[extra]
        source[row] = crop * patches + int(patch[row]) if is_patch else -1 - extra
    x_out, out = torch.empty(rows.total, C), torch.empty(rows.total, C)
    weight, bias = torch.randn(C), torch.randn(C)
    reference.run(
        embedded.flatten(0, 1), None, weight, bias, EPS, out, x_out=x_out, source=source, initial=initial
    )
    torch.testing.assert_close(x_out, expected)
    torch.testing.assert_close(out, F.layer_norm(expected, (C,), weight, bias, EPS))


def test_rows_are_picked_after_the_addition() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(7, C), torch.randn(C), torch.randn(C)
    delta, initial = torch.randn(7, C).half(), torch.randn(2, C)
    source = torch.tensor([6, -2, 0, 3, -1], dtype=torch.int32)
    x_out, out = torch.empty(5, C), torch.empty(5, C)
    reference.run(x, delta, weight, bias, EPS, out, x_out=x_out, source=source, initial=initial)
    sums = x + delta.float()
    torch.testing.assert_close(x_out, torch.stack([sums[6], initial[1], sums[0], sums[3], initial[0]]))
