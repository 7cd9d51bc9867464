"""What a run tells while it goes on, and what is left of it in summary.json."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field

import av

import fasteomt


@dataclass(frozen=True)
class Progress:
    """`frames` done; `fraction` of the work in [0, 1], or None if unknown; `fps` since the first frame;
    `eta` in seconds, or None."""

    name: str
    frames: int
    fraction: float | None
    fps: float
    eta: float | None


@dataclass
class Summary:
    """What became of one input; the content of summary.json.

    `frames_in` went into the model, `frames_out` are in the outputs; `decoded` and `skipped` count what the
    source held. `frame_rate` is the outputs', frames a second (the source's over the stride). `duration` is
    the video time covered and `seconds` the wall time, both in seconds;
    `fps` is frames_out / seconds. `complete` is False if anything is missing, and `reason` says what.
    `outputs` maps what was saved to file names in `folder`. `problems` are losses, `notes` repairs.
    """

    source: str
    folder: str
    model: str
    checkpoint: str
    stack: str
    device: str
    classes: dict[int, str]
    width: int
    height: int
    frame_rate: float | None
    start: float | None = None
    end: float | None = None
    stride: int = 1
    frames_in: int = 0
    frames_out: int = 0
    decoded: int = 0
    skipped: int = 0
    duration: float | None = None
    seconds: float = 0.0
    fps: float = 0.0
    complete: bool = False
    reason: str | None = None
    outputs: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """Of the packages that the result depends on."""
    return {
        "fasteomt": fasteomt.__version__,
        "torch": importlib.metadata.version("torch"),
        "av": av.__version__,
        "libavcodec": ".".join(map(str, av.library_versions["libavcodec"])),
    }
