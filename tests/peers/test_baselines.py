"""Every baseline is described in one line."""

from __future__ import annotations

import pytest

from fasteomt.bench.metrics import PEERS
from fasteomt.errors import InputError
from fasteomt.peers.baselines import SUMMARIES, summary


def test_all_baselines_have_a_line() -> None:
    assert set(SUMMARIES) == PEERS  # what records of results may name
    lines = [summary(name) for name in SUMMARIES]
    assert len(set(lines)) == len(lines)
    # For a cell of a Markdown table.
    assert all(20 < len(line) < 160 and not set(line) & set("|\n") for line in lines)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(InputError, match="unknown baseline 'R1': choose one of upstream_script"):
        summary("R1")
