"""Turning decoded frames upright, as players show them."""

from __future__ import annotations

from typing import cast

import av
import numpy as np
from av.sidedata.sidedata import SideData


def display_matrix(frame: av.VideoFrame) -> tuple[int, int, int, int] | None:
    """The 2x2 part (a, b, c, d) of a frame's display matrix, 16.16 fixed point, or None.

    A point (x, y) of the frame, y downwards, is shown at (a x + c y, b x + d y), up to a translation: ISO/IEC
    14496-12, 6.2.2 (`tkhd` matrix), and FFmpeg's libavutil/display.h.
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return None
    a, b, _, c, d = np.frombuffer(bytes(cast(SideData, data)), dtype=np.int32)[:5].tolist()
    return a, b, c, d


def apply_matrix(image: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """Rotate by multiples of 90 degrees and mirror.

    Args:
        image: (H, W, C).
        matrix: as `display_matrix` gives it; a matrix that is neither a rotation by a multiple of 90 degrees
            nor such a rotation mirrored takes the nearest of these.

    Returns:
        (H, W, C) or (W, H, C), contiguous.
    """
    a, b, c, d = matrix
    if abs(a) + abs(d) < abs(b) + abs(c):
        image = image.swapaxes(0, 1)
        across, down = c, b
    else:
        across, down = a, d
    if across < 0:
        image = image[:, ::-1]
    if down < 0:
        image = image[::-1]
    return np.ascontiguousarray(image)
