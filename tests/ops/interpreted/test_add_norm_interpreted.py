"""The kernel in the interpreter: channels that fill no power of two, every optional part."""

from __future__ import annotations

import os

import pytest
import torch

from fasteomt.ops.add_norm import reference

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreted.py"
)


@pytest.mark.parametrize("channels", [32, 40])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("arranged", [False, True])
def test_kernel_equals_reference(channels: int, delta: bool, scaled: bool, arranged: bool) -> None:
    from fasteomt.ops.add_norm import fused

    torch.manual_seed(0)
    # A mean far from zero: the variance must not be computed as a difference of squares.
    x = torch.randn(7, channels) + 100
    given = {
        "scale": torch.randn(channels) if scaled else None,
        "source": torch.tensor([6, -2, 0, 3, -1], dtype=torch.int32) if arranged else None,
        "initial": torch.randn(2, channels) if arranged else None,
    }
    added = torch.randn(7, channels).half() if delta else None
    weight, bias = torch.randn(channels), torch.randn(channels)
    found = []
    for implementation in (fused, reference):
        x_out = torch.empty(5, channels) if arranged else x.clone()
        out = torch.empty(5 if arranged else 7, channels, dtype=torch.float16)
        read = x if arranged else x_out
        implementation.run(read, added, weight, bias, 1e-5, out, x_out=x_out, **given)
        found.append((x_out, out))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=2e-3, atol=2e-3)


def test_stream_in_16_bit_and_nothing_written_to_it() -> None:
    from fasteomt.ops.add_norm import fused

    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 24).half(), torch.randn(24), torch.randn(24)
    out, expected = torch.empty(2, 3, 24, dtype=torch.float16)
    fused.run(x, None, weight, bias, 1e-5, out)
    reference.run(x, None, weight, bias, 1e-5, expected)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
