"""Verdicts kept for later: which gates a stack has passed, for a model, a clip and a GPU."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from fasteomt.cache import cache_root
from fasteomt.errors import InputError
from fasteomt.files import write_json
from fasteomt.gates.limits import load_limits
from fasteomt.gates.verdict import Report, Verdict
from fasteomt.plan import Plan
from fasteomt.provenance import source_digest


def verdict_path(checkpoint: str, plan: Plan, clip: str, gpu: str, folder: Path | None = None) -> Path:
    """The file of one key: SHA-256 (hex) of the checkpoint and of the clip, the plan, the hardware's name.

    Without a `folder` it is in the user's cache.
    """
    hardware = hashlib.sha256(gpu.encode()).hexdigest()[:12]
    return (
        (folder or cache_root() / "verdicts") / checkpoint[:16] / f"{plan.hash}-{hardware}-{clip[:16]}.json"
    )


def save_report(report: Report, folder: Path | None = None) -> Path:
    """Keep the verdicts of the gates that were run, in place of earlier ones of the same gates.

    The file is replaced as a whole: whoever reads it meanwhile finds the old one or the new one.

    Returns:
        The file.

    Raises:
        InputError: it can't be written.
    """
    key = (report.subject.checkpoint, report.plan, report.subject.clip, report.subject.gpu)
    kept = read_verdicts(*key, folder) | {one.gate: one for one in report.verdicts if one.passed is not None}
    path = verdict_path(*key, folder)
    write_json(path, {"verdicts": [one.to_dict() for one in kept.values()]}, overwrite=True)
    return path


def read_verdicts(
    checkpoint: str, plan: Plan, clip: str, gpu: str, folder: Path | None = None
) -> dict[str, Verdict]:
    """Verdicts by gate that still hold: of this very source code and torch, and by today's limits.

    A file that can't be read, contradicts itself or was made for another key counts for nothing.
    """
    found = _read(verdict_path(checkpoint, plan, clip, gpu, folder), checkpoint, plan, gpu)
    return found if {one.subject.clip for one in found.values()} == {clip} else {}


def held_verdicts(
    checkpoint: str, plan: Plan, gpu: str, folder: Path | None = None
) -> dict[str, dict[str, Verdict]]:
    """As `read_verdicts`, by clip, for all clips that there are verdicts on."""
    pattern = verdict_path(checkpoint, plan, "*", gpu, folder)
    found = [_read(path, checkpoint, plan, gpu) for path in sorted(pattern.parent.glob(pattern.name))]
    return {next(iter(one.values())).subject.clip: one for one in found if one}


def _read(path: Path, checkpoint: str, plan: Plan, gpu: str) -> dict[str, Verdict]:
    """What holds in one file, which is of one clip."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return {}
        found = [Verdict.from_dict(raw) for raw in json.loads(path.read_text("utf-8"))["verdicts"]]
        clips = {one.subject.clip for one in found}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError):
        return {}
    tier = load_limits().tier(plan)
    now = (checkpoint, plan.hash, gpu, torch.__version__, source_digest())
    held = {}
    for one in found:
        was = one.subject
        made = (was.checkpoint, was.plan, was.gpu, was.torch, was.source)
        today = tier.of(one.gate, truth=was.truth is not None)
        if made == now and len(clips) == 1 and one.passed is not None and dict(one.limits) == today:
            held[one.gate] = one
    return held
