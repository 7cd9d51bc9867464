"""Where fasteomt keeps what it found out on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_root() -> Path:
    """The user's folder; $FASTEOMT_CACHE replaces the system's usual place for caches."""
    chosen = os.environ.get("FASTEOMT_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "fasteomt"
