"""How long a new process takes from building an engine to its first result."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fasteomt.bench.results import Measured
from fasteomt.bench.worker import CallFailed, Worker
from fasteomt.checkpoint import resolve, resolve_spec
from fasteomt.engine import Engine
from fasteomt.ops.target import Target
from fasteomt.stacks import Stack

_LONGEST_S = 600.0
# Where compiled kernels are kept.
_CACHES = ("FASTEOMT_CACHE", "TRITON_CACHE_DIR")


def ready_rows(name: str, device: torch.device, stack: Stack, *, crops: int) -> list[Measured]:
    """`ready_s` with empty caches of compiled kernels ('cold'), then with what that left there ('warm').

    Each in a process of its own, which has torch imported and the checkpoint loaded before. What was measured
    to be fastest on this GPU is the shipped table's, since the user's lies in a cache.

    Args:
        name: of the checkpoint, as `resolve` takes it.
    """
    spec, rows = resolve_spec(name), []
    with _empty_caches():
        common: dict[str, Any] = {
            "model": spec.short_name, "stack": stack.name, "plan": stack.plan(spec, Target.of(device)).hash,
            "metric": "ready_s", "crops": crops, "frames": 1, "batch": 1, "streams": 1, "by": "native",
        }  # fmt: skip
        for phase in ("cold", "warm"):
            worker = Worker()
            try:
                spent = worker.ask(_LONGEST_S, ready_seconds, name, stack, str(device), crops)
            except CallFailed as error:
                rows.append(Measured(**common, phase=phase, note=str(error)))
            else:
                rows.append(Measured(**common, phase=phase, median=spent, min=spent, max=spent, n=1))
            finally:
                worker.close()
    return rows


def ready_seconds(name: str, stack: Stack, device: str, crops: int) -> float:
    """Build an engine and make its first result."""
    checkpoint, where = resolve(name), torch.device(device)
    started = time.perf_counter()
    Engine(checkpoint.spec, checkpoint.weights, stack, where).warm_up(crops)
    return time.perf_counter() - started


@contextmanager
def _empty_caches() -> Iterator[None]:
    """For processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in _CACHES}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({name: str(Path(folder) / name) for name in _CACHES})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
