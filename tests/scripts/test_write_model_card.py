"""The model card is made of records that belong together, or not at all."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fasteomt.checkpoint import SHIPPED, read

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "write_model_card.py"
MODEL = "heads-vitt16"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_model_card", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def records(folder: Path, **changes: Any) -> list[Path]:
    """Evaluation, upstream's evaluation and training record; `changes` go into the second."""
    ours = {
        "scores": [{"name": "head", "iou": 0.5}],
        "images": 2,
        "model_sha256": read(SHIPPED[MODEL]).sha256,
        "dataset_sha256": "abc",
        "device": "cpu",
        "predictor": "fasteomt fp32",
    }
    theirs = ours | {"predictor": "upstream_predict (lightly-train 0.16.2)"} | changes
    training = {"commands": ["train"], "hardware": "somewhere"}
    paths = [folder / name for name in ("ours.json", "theirs.json", "training.json")]
    for path, content in zip(paths, (ours, theirs, training), strict=True):
        path.write_text(json.dumps(content))
    return paths


def test_card_holds_what_was_measured(script: ModuleType, tmp_path: Path, monkeypatch) -> None:
    def commit(*_: Any, **__: Any) -> Any:
        return type("Done", (), {"stdout": "1234\n"})

    monkeypatch.setattr(script.subprocess, "run", commit)
    card = script.card(MODEL, *records(tmp_path))
    assert card["iou"] == card["iou_upstream_predict"] == {"head": 0.5}
    assert card["commit"] == "1234"
    assert card["training"]["commands"] == ["train"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_sha256": "other"}, "another model"),
        ({"dataset_sha256": "other"}, "on the data of"),
        ({"predictor": "fasteomt fp32"}, "upstream_predict"),
    ],
)
def test_records_that_do_not_belong_together(script: ModuleType, tmp_path: Path, changes, match) -> None:
    with pytest.raises(script.InputError, match=match):
        script.card(MODEL, *records(tmp_path, **changes))


def test_shipped_card_is_of_the_shipped_model() -> None:
    card = json.loads(SHIPPED[MODEL].with_suffix(".json").read_text("utf-8"))
    assert card["sha256"] == read(SHIPPED[MODEL]).sha256
    difference = abs(card["iou"]["head"] - card["iou_upstream_predict"]["head"])
    assert difference <= 0.002
    assert card["images"] == 200
