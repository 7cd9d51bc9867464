"""A small model, and what is wrong with rows made of it."""

from __future__ import annotations

import torch

from fasteomt.bench import environment
from fasteomt.bench.results import RoundResults, Run, problems
from fasteomt.checkpoint import random_checkpoint
from fasteomt.model.spec import ModelSpec

CPU = torch.device("cpu")
SMALL = random_checkpoint(ModelSpec.from_name("vitt16", image_size=(64, 64)))


def complaints(rows: list) -> list[str]:
    run = Run.build(environment.current(CPU), "test", rows, ())
    return problems(
        RoundResults(round="infer-opt/round0_baseline", title="t", kind="study", parent=None, runs=(run,))
    )
