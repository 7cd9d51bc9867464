"""Video and images in, masks and overlays out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fasteomt.video.run import run_video
    from fasteomt.video.sink import read_masks
    from fasteomt.video.source import Frame, Source, open_source
    from fasteomt.video.summary import Summary
    from fasteomt.video.write import VideoWriter

__all__ = ["Frame", "Source", "Summary", "VideoWriter", "open_source", "read_masks", "run_video"]

_HOMES = {
    "Frame": "source",
    "Source": "source",
    "open_source": "source",
    "Summary": "summary",
    "run_video": "run",
    "read_masks": "sink",
    "VideoWriter": "write",
}


def __getattr__(name: str) -> Any:
    # A decoder takes a while to import: only what is used gets loaded.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"fasteomt.video.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fasteomt.video' has no attribute '{name}'")
