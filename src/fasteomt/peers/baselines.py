"""All baselines by name, each in a line, for tables."""

from __future__ import annotations

from fasteomt.errors import InputError, brief
from fasteomt.peers import model, training, upstream_video

SUMMARIES: dict[str, str] = {
    name: baseline.summary
    for table in (upstream_video.MODES, model.PEERS, training.TRAININGS)
    for name, baseline in table.items()
}


def summary(name: str) -> str:
    """What a baseline runs, in one line.

    Raises:
        InputError: unknown name.
    """
    try:
        return SUMMARIES[name]
    except KeyError:
        raise InputError(f"unknown baseline {brief(name)}: choose one of {', '.join(SUMMARIES)}") from None
