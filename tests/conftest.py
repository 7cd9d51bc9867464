"""Shared by all tests: no network, a cache of their own, and models small enough for a CPU."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# LightlyTrain posts usage events unless told not to; it reads this when it is imported.
os.environ["LIGHTLY_TRAIN_EVENTS_DISABLED"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "FASTEOMT_CACHE" not in os.environ:  # what the user's holds must not decide what tests see
    os.environ["FASTEOMT_CACHE"] = tempfile.mkdtemp(prefix="fasteomt-tests-")
    atexit.register(shutil.rmtree, os.environ["FASTEOMT_CACHE"], ignore_errors=True)

import pytest
import torch

from fasteomt.checkpoint import Checkpoint, random_checkpoint
from fasteomt.model.spec import ModelSpec


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def small_spec() -> ModelSpec:
    """A whole model in miniature: milliseconds a crop, every kind of layer in it."""
    return ModelSpec.from_name(
        "vitt16",
        embed_dim=64,
        num_heads=2,
        ffn_hidden=128,
        depth=3,
        num_joint_blocks=1,
        num_queries=8,
        image_size=(64, 64),
    )


@pytest.fixture
def small_checkpoint(small_spec: ModelSpec) -> Checkpoint:
    return random_checkpoint(small_spec)
