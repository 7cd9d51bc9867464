"""The dtype of class ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def id_dtype(ids: Iterable[int]) -> np.dtype[Any]:
    """The smallest of uint8, uint16 and int32 that holds all of these ids (at least one); ids never wrap."""
    ids = list(ids)
    if min(ids) < 0 or max(ids) > 65535:
        return np.dtype(np.int32)
    return np.dtype(np.uint8 if max(ids) <= 255 else np.uint16)
