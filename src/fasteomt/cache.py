"""Where fasteomt keeps what it found out on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fasteomt.errors import InputError


def cache_root() -> Path:
    """The user's folder; $FASTEOMT_CACHE replaces the system's usual place for caches.

    Raises:
        InputError: the user has no home, and nothing else says where.
    """
    chosen = os.environ.get("FASTEOMT_CACHE")
    if chosen:
        return Path(chosen)
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise InputError("no folder for caches: this user has no home: set FASTEOMT_CACHE to one") from None
    return base / "fasteomt"
