"""Shared by tests of rows: a clip of three grey frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fasteomt.video.write import VideoWriter


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    with VideoWriter(path, 96, 64, 12) as writer:
        for value in (40, 90, 140):
            writer.write(torch.full((64, 96, 3), value, dtype=torch.uint8).numpy())
    return path
