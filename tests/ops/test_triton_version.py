"""Where kernels are compiled by another Triton than the installed torch's, that it is really used."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("EXPECTED_TRITON" not in os.environ, reason="run by .ci/run, which installs that Triton")
def test_is_the_expected_one() -> None:
    import triton

    assert triton.__version__ == os.environ["EXPECTED_TRITON"]
