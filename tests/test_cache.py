"""Where what was found out is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasteomt.cache import cache_root
from fasteomt.engine import tuning
from fasteomt.errors import InputError


def test_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("FASTEOMT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_root() == tmp_path / "xdg" / "fasteomt"


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is told what to do; kernels that others measured are known all the same."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FASTEOMT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InputError, match="set FASTEOMT_CACHE"):
        cache_root()
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path)
    assert tuning.load_table("NVIDIA H200") == tuning.Table()
