"""The pre-training script: runs of seconds to an export that opens."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pretrain_eomt as script
from fasteomt.checkpoint import random_checkpoint, read, write_export
from fasteomt.data.synth import write_dataset
from fasteomt.model.spec import ModelSpec

SMALL = ModelSpec.from_name("vitt16", embed_dim=64, num_heads=1, ffn_hidden=64, depth=2, num_joint_blocks=1)


@contextmanager
def small_model(**shape: object) -> Iterator[None]:
    """Every name means the architecture SMALL, or one of another `shape`."""

    def from_name(name: str, **changes: object) -> ModelSpec:
        return replace(SMALL, **shape, **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script.ModelSpec, "from_name", staticmethod(from_name))
        yield


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pretrain") / "data"
    write_dataset(root, train=6, valid=2, size=(160, 120), seed=0, workers=1)
    return root


def test_a_short_run_ends_in_an_export(data_root: Path, tmp_path: Path) -> None:
    common = ["--data-root", str(data_root), "--image-size", "64", "--batch-size", "4", "--workers", "1"]
    common += ["--device", "cpu", "--seconds", "1.5"]
    first = tmp_path / "first.pt"
    with small_model():
        assert script.main([*common, "--out", str(first)]) == 0
        found = read(first)
        assert found.spec.class_names == ("background", "head")
        record = json.loads(first.with_suffix(".json").read_text())
        assert record["steps"] > 0
        assert record["windows"] + record["whole_crops"] > record["steps"]
        assert set(record["iou_middle"]) == {"background", "head"}
        assert not first.with_suffix(".snapshot.pt").exists()
        assert "start" not in record
        assert script.main([*common, "--out", str(tmp_path / "second.pt"), "--start", str(first)]) == 0
        assert json.loads((tmp_path / "second.json").read_text())["start"] == found.sha256
        assert script.main([*common, "--out", str(first)]) == 2  # exists
        deep = tmp_path / "deep.pt"
        assert script.main([*common, "--out", str(deep), "--grow", "2"]) == 2  # one joint block
        other = random_checkpoint(replace(SMALL, num_queries=7))
        write_export(tmp_path / "other.pt", other.spec, other.weights)
        third = tmp_path / "third.pt"
        assert script.main([*common, "--out", str(third), "--start", str(tmp_path / "other.pt")]) == 2
        assert not third.exists()


def test_a_deep_model_grows_out_of_a_shallow_one(data_root: Path, tmp_path: Path, capsys) -> None:
    options = f"--data-root {data_root} --image-size 64 --batch-size 4 --workers 1 --device cpu --seconds 2"
    out = tmp_path / "deep.pt"
    with small_model(depth=4, num_joint_blocks=2):
        assert script.main(["--out", str(out), "--grow", "2", *options.split()]) == 0
    assert read(out).spec.depth == 4
    assert json.loads(out.with_suffix(".json").read_text())["steps"] >= 2 * 24


def test_a_wide_and_deep_model_grows_out_of_a_narrow_one(data_root: Path, tmp_path: Path, capsys) -> None:
    options = f"--data-root {data_root} --image-size 64 --batch-size 4 --workers 1 --device cpu".split()
    first, out = tmp_path / "first.pt", tmp_path / "large.pt"
    with small_model():
        assert script.main(["--out", str(first), "--seconds", "1", *options]) == 0
    middle = json.loads(first.with_suffix(".json").read_text())["iou_middle"]
    options += ["--start", str(first), "--learning-rate", "1e-9", "--seconds", "0.1"]
    with small_model(embed_dim=128, num_heads=2, ffn_hidden=128):
        assert script.main(["--out", str(out), *options]) == 0
    assert read(out).spec.embed_dim == 128
    found = json.loads(out.with_suffix(".json").read_text())["iou_middle"]
    assert found == pytest.approx(middle, abs=0.02)
    with small_model(embed_dim=128, num_heads=2, ffn_hidden=128, depth=4, num_joint_blocks=2):
        both = tmp_path / "both.pt"
        assert script.main(["--out", str(both), "--grow", "2", *options]) == 0
    assert read(both).spec.depth == 4
    capsys.readouterr()
    for shape in ({"num_queries": 7}, {"embed_dim": 96}, {"ffn_hidden": 32}, {"ffn": "swiglu"}):
        with small_model(**shape):
            assert script.main(["--out", str(tmp_path / "no.pt"), *options]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert f"{first}: " in line
        assert "can't be grown" in line


@pytest.mark.parametrize(
    "options",
    [
        "--seconds 0",
        "--seconds nan",
        "--batch-size 0",
        "--images -1",
        "--workers 0",
        "--data-root nowhere",
        "--seed -1",
        "--image-size 80",
        "--image-size 100",
        "--grow 0",
        "--model nothing",
        "--start nowhere.pt",
        "--massive 1000 --start nowhere.pt",
        "--massive 1e39",
        "--massive nan",
        "--learning-rate 1e300",
        f"--batch-size {10**30}",
        f"--images {10**30}",
        "--model vitt14 --image-size 56",
    ],
)
def test_what_can_not_be_trained_is_refused_first(options: str, tmp_path: Path, capsys) -> None:
    assert script.main(["--out", str(tmp_path / "m.pt"), "--device", "cpu", *options.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_not_be_written_is_found_first(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("mine")
    long = "x" * 247  # with .pt it is short enough, with .snapshot.pt it isn't
    names = ("file/m.pt", "file", "m.json", "m.safetensors", "m", f"{long}.pt", f"{long}{long}.pt")
    for out in (*(str(tmp_path / name) for name in names), "", ".", "/"):
        assert script.main(["--out", out, "--device", "cpu"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_appears_meanwhile_is_left_and_the_training_kept(
    data_root: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    out = tmp_path / "m.pt"
    measure = script.intersection_over_union

    def slowly(*arguments: object) -> object:
        out.write_text("mine")
        return measure(*arguments)

    monkeypatch.setattr(script, "intersection_over_union", slowly)
    common = f"--data-root {data_root} --image-size 64 --batch-size 4 --workers 1 --device cpu --seconds 0.5"
    with small_model():
        assert script.main(["--out", str(out), *common.split()]) == 5
    assert out.read_text() == "mine"
    assert "m.snapshot.pt" in capsys.readouterr().err
    assert read(tmp_path / "m.snapshot.pt").spec.class_names == ("background", "head")


def test_weights_that_are_no_numbers_are_no_start(data_root: Path, tmp_path: Path, capsys) -> None:
    weights = random_checkpoint(SMALL).weights
    weights["queries.weight"] = torch.full_like(weights["queries.weight"], torch.nan)
    write_export(tmp_path / "nan.pt", SMALL, weights)
    options = f"--data-root {data_root} --image-size 64 --device cpu --start {tmp_path / 'nan.pt'}"
    with small_model():
        assert script.main(["--out", str(tmp_path / "m.pt"), *options.split()]) == 2
    assert "no finite numbers" in capsys.readouterr().err


def test_only_what_the_run_made_is_removed(data_root: Path, tmp_path: Path, capsys) -> None:
    common = f"--data-root {data_root} --image-size 64 --batch-size 4 --workers 1 --device cpu --seconds 0.5"
    theirs = tmp_path / "m.snapshot.pt"
    theirs.write_text("mine")
    with small_model():
        assert script.main(["--out", str(tmp_path / "m.pt"), *common.split()]) == 2
    assert theirs.read_text() == "mine"
    assert "m.snapshot.pt" in capsys.readouterr().err


def test_a_diverged_training_is_no_success(data_root: Path, tmp_path: Path, capsys) -> None:
    common = f"--data-root {data_root} --image-size 64 --batch-size 4 --workers 1 --device cpu --seconds 60"
    with small_model():
        options = ["--out", str(tmp_path / "m.pt"), "--learning-rate", "1e18", *common.split()]
        assert script.main(options) == 2
    assert "lower --learning-rate" in capsys.readouterr().err
    assert not (tmp_path / "m.pt").exists()


def test_an_interrupted_training_is_kept(data_root: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    common = f"--data-root {data_root} --image-size 64 --batch-size 4 --workers 1 --device cpu --seconds 60"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "train", interrupted)
    with small_model():
        assert script.main(["--out", str(tmp_path / "m.pt"), *common.split()]) == 130
    assert read(tmp_path / "m.snapshot.pt").spec.depth == SMALL.depth
    assert "--start" in capsys.readouterr().err


def test_splits_that_name_classes_otherwise_are_refused(data_root: Path, tmp_path: Path, capsys) -> None:
    changed = tmp_path / "data"
    shutil.copytree(data_root, changed)
    labels = changed / "valid" / "_annotations.coco.json"
    labels.write_text(labels.read_text().replace('"name": "head"', '"name": "cat"'))
    assert script.main(["--out", str(tmp_path / "m.pt"), "--data-root", str(changed), "--device", "cpu"]) == 2
    assert "differ in classes" in capsys.readouterr().err


def one_of_two(rank: int, port: int, out: Path) -> None:
    """What torchrun starts, on generated heads; leaves this process's weights in `out`/RANK.pt."""
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    options = "--image-size 64 --batch-size 4 --workers 2 --device cpu --seconds 1 --images 8 --held-out 4"
    train = script.train

    def kept(model: script.Windowed, *rest: object) -> object:
        done = train(model, *rest)
        torch.save(model.state_dict(), out / f"{rank}.weights")
        return done

    with small_model(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "train", kept)
        raise SystemExit(script.main(["--out", str(out / "two.pt"), *options.split()]))


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=one_of_two, args=(rank, port, tmp_path)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(180)
    assert [process.exitcode for process in both] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.weights") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    record = json.loads((tmp_path / "two.json").read_text())
    assert record["gpus"] == 2
    assert record["images"] >= 16
    assert read(tmp_path / "two.pt").spec.num_queries == SMALL.num_queries
