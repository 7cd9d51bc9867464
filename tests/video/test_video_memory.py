"""Memory stays flat over thousands of frames."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from clips import RedPredictor, encode, picture

from fasteomt.result import Result
from fasteomt.video import run_video

COUNT = 3000


def rss() -> int:
    """Resident memory, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_3000_frames(tmp_path: Path) -> None:
    """Resident memory at frame 200 and at the last frame are within 5 %, with all outputs written."""
    pictures = [picture(number) for number in range(256)]
    clip = encode(tmp_path / "a.mp4", itertools.islice(itertools.cycle(pictures), COUNT))
    sizes: dict[int, int] = {}

    class Measuring(RedPredictor):
        def predict_rgb(self, frame: np.ndarray, pts: float | None = None) -> Result:
            if len(self.seen) in (200, COUNT - 1):
                sizes[len(self.seen)] = rss()
            return super().predict_rgb(frame, pts)

    summary = run_video(Measuring(), clip, tmp_path / "out")
    assert summary.frames_out == COUNT
    assert sizes[COUNT - 1] <= 1.05 * sizes[200]
