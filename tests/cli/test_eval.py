"""The evaluation loop with small fake predictors, and `fasteomt eval` end to end."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fasteomt.checkpoint import SHIPPED, random_checkpoint, write_export
from fasteomt.cli.main import main
from fasteomt.data.dataset import Sample, SegmentationSet, open_dataset
from fasteomt.errors import CheckpointError, InputError, UnsupportedError
from fasteomt.evaluate import check_classes, evaluate
from fasteomt.model.spec import ModelSpec
from fasteomt.provenance import commit, source_digest

CLASSES = {0: "background", 7: "head"}


@dataclass
class Answer:
    mask: np.ndarray


def fake_set(folder: Path, count: int = 3, ignore: int | None = None) -> SegmentationSet:
    """Image k is grey k; its upper k + 1 rows of 4 are class 7."""
    samples = []
    for k in range(count):
        path = folder / f"{k}.png"
        Image.new("RGB", (6, 4), (k, k, k)).save(path)
        samples.append(Sample(path.name, path, (4, 6), partial(true_mask, k, ignore)))
    return SegmentationSet(folder, CLASSES, tuple(samples), ignore)


def true_mask(k: int, ignore: int | None) -> np.ndarray:
    mask = np.zeros((4, 6), np.uint8)
    mask[: k + 1] = 7
    if ignore is not None:
        mask[:, 0] = ignore
    return mask


def perfect(rgb: np.ndarray) -> Answer:
    assert rgb.shape == (4, 6, 3)
    assert rgb.dtype == np.uint8
    return Answer(true_mask(int(rgb[0, 0, 0]), None))


def blind(rgb: np.ndarray) -> Answer:
    return Answer(np.zeros(rgb.shape[:2], np.uint8))


def test_perfect_and_blind_predictors(tmp_path: Path) -> None:
    """Ids are the data set's, not positions."""
    dataset = fake_set(tmp_path)
    right = evaluate(perfect, CLASSES, dataset)
    assert right.report.mean_iou == right.report.pixel_accuracy == 1.0
    assert right.images == 3
    assert right.images_per_s is not None and right.images_per_s > 0
    wrong = evaluate(blind, CLASSES, dataset)
    assert [score.iou for score in wrong.report.scores] == [(18 + 12 + 6) / 72, 0.0]


def test_ignored_pixels_and_progress(tmp_path: Path) -> None:
    """Ignore 255."""
    seen = []
    result = evaluate(
        perfect,
        CLASSES,
        fake_set(tmp_path, ignore=255),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert result.report.mean_iou == 1.0
    assert result.report.ignored_pixels == 3 * 4
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_limit_and_single_image(tmp_path: Path) -> None:
    """One image alone."""
    result = evaluate(perfect, CLASSES, fake_set(tmp_path), limit=1)
    assert result.images == 1
    assert result.images_per_s is None
    assert result.report.pixels == 24


def test_predictions_that_don_t_fit_name_the_image(tmp_path: Path) -> None:
    dataset = fake_set(tmp_path)
    with pytest.raises(InputError, match=r"0\.png: the prediction holds id 1"):
        evaluate(lambda rgb: Answer(np.ones(rgb.shape[:2], np.uint8)), CLASSES, dataset)
    with pytest.raises(InputError, match=r"0\.png: prediction has shape \(2, 2\)"):
        evaluate(lambda rgb: Answer(np.zeros((2, 2), np.uint8)), CLASSES, dataset)


def test_class_differences_are_listed() -> None:
    check_classes({7: "head", 0: "background"}, CLASSES)  # the order is free
    with pytest.raises(InputError) as caught:
        check_classes({0: "background", 7: "face", 9: "hat"}, {**CLASSES, 3: "hair"})
    message = str(caught.value)
    assert "\n" not in message
    assert "id 3 'hair' only in the data set" in message
    assert "id 7 is 'face' in the model, 'head' in the data set" in message
    assert "id 9 'hat' only in the model" in message
    assert "background" not in message


# The command


def write_data(root: Path, name: str = "object", category: int = 1) -> Path:
    """Two 64x64 images in ROOT/valid, each with one square object."""
    folder = root / "valid"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    images, annotations = [], []
    for key in (1, 2):
        pixels = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{key}.png")
        images.append({"id": key, "file_name": f"{key}.png", "width": 64, "height": 64})
        ring = [8, 8, 40, 8, 40, 40, 8, 40]
        annotations.append({"id": key, "image_id": key, "category_id": category, "segmentation": [ring]})
    coco = {"images": images, "annotations": annotations, "categories": [{"id": category, "name": name}]}
    (folder / "_annotations.coco.json").write_text(json.dumps(coco))
    return root


def test_command_with_random_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The architecture's alias, two images, all figures in the JSON."""
    root, out = write_data(tmp_path / "data"), tmp_path / "figures" / "eval.json"
    assert (
        main(["eval", "--model", "vitt16", "--data", str(root), "--device", "cpu", "--json", str(out)]) == 0
    )
    printed = capsys.readouterr().out
    assert "mean IoU" in printed
    assert "object" in printed
    record = json.loads(out.read_text())
    assert record["predictor"] == "fasteomt fp32"
    assert record["classes"] == {"0": "background", "1": "object"}
    assert (record["images"], record["images_in_split"], record["limit"]) == (2, 2, None)
    assert record["pixels"] == np.sum(record["confusion"]) == 2 * 64 * 64
    assert [score["true_pixels"] for score in record["scores"]] == [2 * (4096 - 1024), 2 * 1024]
    assert 0 <= record["mean_iou"] <= 1
    assert record["dataset_sha256"] == open_dataset(root).digest()
    assert len(record["model_sha256"]) == 64
    assert (record["commit"], record["source"]) == (commit(), source_digest())


@pytest.fixture(scope="module")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with ids {0, 255}, other colours than ImageNet's, and square crops of 64."""
    spec = ModelSpec.from_name(
        "vitt16",
        class_ids=(0, 255),
        class_names=("background", "head"),
        mean=(0.2, 0.5, 0.7),
        std=(0.1, 0.3, 0.4),
        image_size=(64, 64),
    )
    return write_export(
        tmp_path_factory.mktemp("model") / "sparse.pt", spec, random_checkpoint(spec, seed=4).weights
    )


def test_peer_gives_the_same_figures(tmp_path: Path, sparse_model: Path) -> None:
    """Ids {0, 255} and mean/std travel in the file; LightlyTrain's own predict is told apart by name."""
    pytest.importorskip("lightly_train")
    root = write_data(tmp_path / "data", "head", 255)
    records = []
    for more in ([], ["--peer", "upstream_predict"]):
        out = tmp_path / f"{len(records)}.json"
        arguments = ["eval", "--model", str(sparse_model), "--data", str(root), "--device", "cpu"]
        assert main([*arguments, "--json", str(out), *more]) == 0
        records.append(json.loads(out.read_text()))
    ours, theirs = records
    assert ours["predictor"] == "fasteomt fp32"
    assert theirs["predictor"].startswith("upstream_predict")
    assert ours["model_sha256"] == theirs["model_sha256"]
    assert [score["id"] for score in ours["scores"]] == [0, 255]
    for mine, upstreams in zip(ours["scores"], theirs["scores"], strict=True):
        assert mine["true_pixels"] == upstreams["true_pixels"]
        assert mine["predicted_pixels"] > 0.3 * ours["pixels"]  # neither side may win by one class alone
        assert mine["predicted_pixels"] == pytest.approx(upstreams["predicted_pixels"], abs=5)
    assert ours["mean_iou"] == pytest.approx(theirs["mean_iou"], abs=2e-3)


def test_upstream_peer_needs_its_package(monkeypatch: pytest.MonkeyPatch, sparse_model: Path) -> None:
    import sys

    from fasteomt.peers.upstream import load_upstream

    monkeypatch.setitem(sys.modules, "lightly_train", None)
    with pytest.raises(UnsupportedError, match=r"fasteomt\[train\]"):
        load_upstream(sparse_model, "cpu")


def test_upstream_peer_never_unpickles_what_ours_refuses(tmp_path: Path) -> None:
    """LightlyTrain unpickles without restrictions."""
    from fasteomt.peers.upstream import load_upstream

    path = tmp_path / "bad.pt"
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    with pytest.raises(CheckpointError):
        load_upstream(path, "cpu")
    assert not (tmp_path / "owned").exists()


def fails(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that a failing `fasteomt eval` prints last."""
    assert main(["eval", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip().splitlines()[-1]


def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_data(tmp_path / "data", "head")
    data = ("--data", str(root), "--device", "cpu")
    assert "not a folder" in fails(capsys, "--data", str(tmp_path / "none"))
    assert "no split 'test'" in fails(capsys, *data, "--split", "test")
    assert "id 1 is 'object' in the model, 'head' in the data set" in fails(
        capsys, *data, "--model", "vitt16"
    )
    assert "stack" in fails(
        capsys, *data, "--model", "vitt16", "--peer", "upstream_predict", "--stack", "bf16"
    )
    assert "upstream_predict" in fails(capsys, *data, "--model", "vitt16", "--peer", "nobody")
    for option in ("--data", "--json"):
        assert f"'{option}': it is empty" in fails(capsys, *data, option, "")
    assert "limit" in fails(capsys, *data, "--model", "vitt16", "--limit", "0")


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_place_for_the_figures_is_looked_at_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr("fasteomt.cli.eval_.open_dataset", never)
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for name, text in (
        (".", "is a folder"),
        ("file/eval.json", "file is not a folder"),
        ("file/below/eval.json", "file is not a folder"),
        ("pipe", "not a regular file"),
    ):
        path = str(tmp_path / name)
        assert text in fails(capsys, "--data", str(tmp_path), "--json", path, "--overwrite")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert "can't be written to" in fails(
        capsys, "--data", str(tmp_path), "--json", str(tmp_path / "new/eval.json")
    )


def test_figures_never_replace_what_they_are_about(
    tmp_path: Path, sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_data(tmp_path / "data", "head", 255)
    model = shutil.copy(sparse_model, tmp_path / "model.pt")
    targets = (model, root / "valid/_annotations.coco.json", root / "valid/1.png")
    before = [path.read_bytes() for path in targets]
    for path in targets:
        arguments = ["--model", str(model), "--data", str(root), "--json", str(path), "--overwrite"]
        assert "which is evaluated" in fails(capsys, *arguments)
    assert [path.read_bytes() for path in targets] == before


def test_image_that_is_all_but_a_line_is_named(tmp_path: Path, sparse_model: Path) -> None:
    from fasteomt.predictor import load

    Image.new("RGB", (20000, 1)).save(tmp_path / "line.png")
    sample = Sample("line.png", tmp_path / "line.png", (1, 20000), lambda: np.zeros((1, 20000), np.uint8))
    model = load(sparse_model, device="cpu")
    dataset = SegmentationSet(tmp_path, model.spec.names, (sample,))
    with pytest.raises(InputError, match=r"line\.png: a frame of 20000x1 pixels makes 20000 crops"):
        evaluate(model.predict_rgb, model.spec.names, dataset)


def test_existing_json_is_kept_without_overwrite(
    tmp_path: Path, sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = write_data(tmp_path / "data", "head", 255), tmp_path / "eval.json"
    out.write_text("mine")
    arguments = ["--model", str(sparse_model), "--data", str(root), "--device", "cpu", "--json", str(out)]
    assert "--overwrite" in fails(capsys, *arguments)
    assert out.read_text() == "mine"
    assert main(["eval", *arguments, "--overwrite", "--limit", "1"]) == 0
    record = json.loads(out.read_text())
    assert (record["images"], record["limit"], record["images_per_s"]) == (1, 1, None)


def test_figures_never_replace_a_shipped_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, shipped = write_data(tmp_path / "data"), tmp_path / "shipped.pt"
    shipped.write_text("weights")
    monkeypatch.setitem(SHIPPED, "heads-vitt16", shipped)
    arguments = [
        "eval",
        "--model",
        "heads-vitt16",
        "--data",
        str(root),
        "--json",
        str(shipped),
        "--overwrite",
    ]
    assert main(arguments) == 2
    assert "would replace" in capsys.readouterr().err
    assert shipped.read_text() == "weights"
