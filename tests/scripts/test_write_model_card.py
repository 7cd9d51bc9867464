"""The model card is made of records that belong together, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import write_model_card as script
from fasteomt.checkpoint import SHIPPED, read

MODEL = "heads-vitt16"


def records(folder: Path, **changes: Any) -> list[Path]:
    """Evaluation, upstream's evaluation and training record; `changes` go into the second."""
    ours = {
        "scores": [{"name": "head", "iou": 0.5}],
        "images": 2,
        "images_in_split": 2,
        "limit": None,
        "model_sha256": read(SHIPPED[MODEL]).sha256,
        "dataset_sha256": "abc",
        "device": "cpu",
        "predictor": "fasteomt fp32",
        "commit": "1234",
        "source": "def",
    }
    theirs = ours | {"predictor": "upstream_predict (lightly-train 0.16.2)"} | changes
    training = {"command": "scripts/train.py --out /somewhere/m.pt --steps 3", "device": "a GPU"}
    training |= {"steps": 3, "seconds": 1.5, "source": "abc"}
    paths = [folder / name for name in ("ours.json", "theirs.json", "training.json")]
    for path, content in zip(paths, (ours, theirs, training), strict=True):
        path.write_text(json.dumps(content))
    return paths


def test_card_holds_what_was_measured(tmp_path: Path) -> None:
    card = script.card(MODEL, *records(tmp_path))
    assert card["iou"] == card["iou_upstream_predict"] == {"head": 0.5}
    assert card["commit"] == "1234"
    assert card["training"]["command"] == "scripts/train.py --out m.pt --steps 3"
    assert card["training"]["steps"] == 3


def test_figures_of_changed_sources_are_refused(tmp_path: Path) -> None:
    paths = records(tmp_path)
    for commit in (None, "1234-dirty"):
        paths[0].write_text(json.dumps(json.loads(paths[0].read_text()) | {"commit": commit}))
        with pytest.raises(script.InputError, match="not of a commit"):
            script.card(MODEL, *paths)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_sha256": "other"}, "another model"),
        ({"dataset_sha256": "other"}, "on the data of"),
        ({"predictor": "fasteomt fp32"}, "upstream_predict"),
        ({"limit": 1}, "part of the images"),
        ({"images": 1}, "part of the images"),
        ({"device": "cuda:0"}, "--device cpu"),
        ({"commit": "1234-dirty"}, "not of a commit"),
    ],
)
def test_records_that_do_not_belong_together(tmp_path: Path, changes, match) -> None:
    with pytest.raises(script.InputError, match=match):
        script.card(MODEL, *records(tmp_path, **changes))


@pytest.mark.parametrize("content", ["5", "null", '"scores images"', "[]", "{", "{}"])
def test_what_is_no_record(tmp_path: Path, content: str) -> None:
    paths = records(tmp_path)
    paths[2].write_text(content)
    with pytest.raises(script.InputError, match=r"training\.json"):
        script.card(MODEL, *paths)


def test_figures_of_another_stack_are_refused(tmp_path: Path) -> None:
    paths = records(tmp_path)
    paths[0].write_text(json.dumps(json.loads(paths[0].read_text()) | {"predictor": "fasteomt bf16"}))
    with pytest.raises(script.InputError, match="fp32"):
        script.card(MODEL, *paths)


def test_shipped_card_is_of_the_shipped_model() -> None:
    card = json.loads(SHIPPED[MODEL].with_suffix(".json").read_text("utf-8"))
    assert card["sha256"] == read(SHIPPED[MODEL]).sha256
    difference = abs(card["iou"]["head"] - card["iou_upstream_predict"]["head"])
    assert difference <= 0.002
    assert card["images"] == 200
    assert card["iou"]["head"] >= 0.93
