"""Where what was found out is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasteomt.cache import cache_root


def test_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("FASTEOMT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_root() == tmp_path / "xdg" / "fasteomt"
