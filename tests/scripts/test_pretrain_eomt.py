"""The pre-training script: runs of seconds to an export that opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pretrain_eomt as script
from fasteomt.checkpoint import random_checkpoint, read, write_export
from fasteomt.data.synth import write_dataset
from fasteomt.model.spec import ModelSpec


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pretrain") / "data"
    write_dataset(root, train=6, valid=2, size=(160, 120), seed=0, workers=1)
    return root


def test_a_short_run_ends_in_an_export(data_root, tmp_path, monkeypatch) -> None:
    small = ModelSpec.from_name(
        "vitt16", embed_dim=64, num_heads=1, ffn_hidden=64, depth=2, num_joint_blocks=1
    )

    def from_name(name: str, **changes: object) -> ModelSpec:
        return replace(small, **changes)

    monkeypatch.setattr(script.ModelSpec, "from_name", staticmethod(from_name))
    common = ["--data-root", str(data_root), "--image-size", "64", "--batch-size", "4", "--workers", "1"]
    common += ["--device", "cpu", "--seconds", "1.5"]
    first = tmp_path / "first.pt"
    assert script.main([*common, "--out", str(first)]) == 0
    found = read(first)
    assert found.spec.class_names == ("background", "head")
    record = json.loads(first.with_suffix(".json").read_text())
    assert record["steps"] > 0
    assert record["windows"] + record["whole_crops"] > record["steps"]
    assert set(record["iou_middle"]) == {"background", "head"}
    assert not first.with_suffix(".snapshot.pt").exists()
    assert script.main([*common, "--out", str(tmp_path / "second.pt"), "--start", str(first)]) == 0
    assert script.main([*common, "--out", str(first)]) == 2  # exists
    other = random_checkpoint(replace(small, num_queries=7))
    write_export(tmp_path / "other.pt", other.spec, other.weights)
    third = tmp_path / "third.pt"
    assert script.main([*common, "--out", str(third), "--start", str(tmp_path / "other.pt")]) == 2
    assert not third.exists()


def test_two_processes_train_on_fresh_heads_and_agree(tmp_path) -> None:
    """Through torchrun: both stop together, one export is written, by a model of the real architecture."""
    out = tmp_path / "two.pt"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = "--image-size 32 --batch-size 4 --workers 2 --device cpu --seconds 0.5 --images 8 --held-out 4"
    command = [*launch, script.__file__, "--out", str(out), *options.split()]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(out.with_suffix(".json").read_text())
    assert record["gpus"] == 2
    assert record["images"] >= 16
    assert read(out).spec.name == "dinov3/vitt16-eomt"
