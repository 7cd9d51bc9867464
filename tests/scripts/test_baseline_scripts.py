"""The two baseline scripts on unmodified LightlyTrain: arguments, errors, and a whole tiny run on the CPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from fasteomt.checkpoint import read
from fasteomt.video.write import VideoWriter

SCRIPTS = Path(__file__).parents[2] / "scripts"
TRAIN, INFER = "train_dinov3_eomt_head", "infer_dinov3_eomt_head_video"


@pytest.fixture(autouse=True)
def _no_usage_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLY_TRAIN_EVENTS_DISABLED", "1")


@pytest.fixture
def train(_no_usage_events: None) -> ModuleType:
    return importlib.import_module(TRAIN)


@pytest.fixture
def infer(_no_usage_events: None) -> ModuleType:
    return importlib.import_module(INFER)


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 training and 2 validation images of 96x64 pixels, each with one square head."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for split, count in (("train", 9), ("valid", 2)):
        folder = root / split
        folder.mkdir()
        images, annotations = [], []
        for i in range(count):
            rgb = rng.integers(0, 255, (64, 96, 3), dtype=np.uint8)
            rgb[10:40, 20 + i : 50 + i] = (220, 180, 150)
            Image.fromarray(rgb).save(folder / f"{i}.png")
            images.append({"id": i, "file_name": f"{i}.png", "width": 96, "height": 64})
            square = [20 + i, 10, 50 + i, 10, 50 + i, 40, 20 + i, 40]
            annotations.append(
                {"id": i, "image_id": i, "category_id": 1, "segmentation": [square], "iscrowd": 0}
                | {"area": 900, "bbox": [20 + i, 10, 30, 30]}
            )
        coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "head"}]}
        (folder / "_annotations.coco.json").write_text(json.dumps(coco))
    return root


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err.strip()
    assert "\n" not in error and "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data-root", "nowhere"], "nowhere is not a folder"),
        (["--model", "dinov3/vitx16-eomt"], "unknown model 'dinov3/vitx16-eomt'"),
        (["--model", "dinov3/vitb16"], "unknown model 'dinov3/vitb16'"),
        (["--batch-size", "10"], "--batch-size 10 is more than the 9 training images"),
        (["--backbone-weights", "absent.pth"], "no such file: --backbone-weights absent.pth"),
        (["--backbone-weights", "{folder}/foreign.pth"], "holds no DINOv3 backbone"),
        (["--backbone-weights", "{folder}/text.pth"], "not a plain DINOv3 state dict"),
        (["--out", "{folder}"], "is not an empty folder"),
        (["--devices", "2"], "the batch probe is for one GPU"),
    ],
)
def test_training_refuses_bad_input(
    train: ModuleType,
    data_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "foreign.pth")
    (tmp_path / "text.pth").write_text("no tensors")
    options = [option.replace("{folder}", str(tmp_path)) for option in options]
    before = sorted(tmp_path.iterdir())
    assert train.main(["--data-root", str(data_root), "--runs-root", str(tmp_path / "runs"), *options]) == 2
    assert said in one_line(capsys)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "options",
    [["--epochs", "0"], ["--batch-size", "some"], ["--backbone-weights", "W", "--from-scratch"], []],
)
def test_training_usage_errors_are_one_line(
    train: ModuleType, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    root = ["--data-root", "d"] if options else []
    with pytest.raises(SystemExit) as stop:
        train.main([*root, *options])
    assert stop.value.code == 2
    assert one_line(capsys).startswith(f"{TRAIN}: error: ")


@pytest.mark.parametrize("script", [TRAIN, INFER])
def test_scripts_start_as_files(script: str, tmp_path: Path) -> None:
    options = {
        TRAIN: ["--data-root", "nowhere"],
        INFER: ["--model", "m.pt", "--video-dir", "nowhere", "--out-dir", "o"],
    }[script]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{script}.py"), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS.parent / "src")},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"{script}: error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def captured_call(train: ModuleType, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> dict[str, Any]:
    """What LightlyTrain would have been asked to do."""
    import lightly_train

    calls: list[dict[str, Any]] = []

    def fake(**arguments: Any) -> None:
        calls.append(arguments)
        for split in ("train", "val"):
            folders = arguments["data"][split]
            stems = [{path.stem for path in Path(folders[kind]).iterdir()} for kind in ("images", "masks")]
            assert stems[0] == stems[1] != set()
        exports = Path(arguments["out"]) / "exported_models"
        exports.mkdir()
        for name in ("best", "last"):
            (exports / f"exported_{name}.pt").write_text(name)

    monkeypatch.setattr(lightly_train, "train_semantic_segmentation", fake)
    assert train.main(options) == 0
    return calls[0]


def test_training_leaves_upstream_defaults_alone(
    train: ModuleType, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "w.pth"
    torch.save({"patch_embed.proj.weight": torch.zeros(1)}, weights)
    options = f"--data-root {data_root} --backbone-weights {weights} --runs-root {tmp_path / 'runs'}"
    call = captured_call(train, monkeypatch, f"{options} --model dinov3/vitb16-eomt --epochs 20".split())
    assert call["model_args"] == {"backbone_weights": str(weights)}
    assert call["transform_args"] is None and call["logger_args"] is None
    assert call["precision"] == "bf16-mixed" and call["num_workers"] == "auto" and call["devices"] == 1
    assert call["data"]["classes"] == {0: "background", 1: "head"}
    if not torch.cuda.is_available():
        # No GPU to probe: upstream's 16, but never more than there are images; 9 a step make 1 step an epoch.
        assert (call["batch_size"], call["steps"]) == (9, 20)
    (run,) = (tmp_path / "runs").iterdir()
    assert call["out"] == run
    assert [(run / f"{name}.pth").read_text() for name in ("best", "last")] == ["best", "last"]
    config = json.loads((run / "run_config.json").read_text())
    assert config["versions"]["lightly_train"] == "0.16.2" and config["images"] == {"train": 9, "valid": 2}


def test_training_passes_its_options_on(
    train: ModuleType, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--model dinov3/vitt16-eomt --from-scratch --backbone-freeze --image-size 64 --batch-size 4"
    options += " --learning-rate 1e-3 --layer-decay 1 --warmup-steps 2 3 --epochs 3 --val-every 5"
    options += " --workers 0 --seed 7"
    call = captured_call(
        train, monkeypatch, ["--data-root", str(data_root), "--out", str(tmp_path / "run"), *options.split()]
    )
    assert call["model_args"].pop("backbone_weights").endswith("random_backbone.pth")
    assert call["model_args"] == {"backbone_freeze": True, "lr": 1e-3, "llrd": 1.0, "lr_warmup_steps": (2, 3)}
    assert call["transform_args"] == {"image_size": (64, 64)}
    assert call["logger_args"] == {"val_every_num_steps": 5}
    # Upstream accumulates 16 // 4 batches, so an epoch of 9 images is one step.
    assert (call["batch_size"], call["steps"], call["seed"], call["num_workers"]) == (4, 3, 7, 0)


@pytest.fixture(scope="module")
def run_folder(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a ViT-T from scratch: 9 images a batch, so that upstream accumulates nothing."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTLY_TRAIN_EVENTS_DISABLED", "1")
        patch.setenv("LIGHTLY_TRAIN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        options = f"--data-root {data_root} --out {folder} --model dinov3/vitt16-eomt --from-scratch"
        options += " --image-size 32 --batch-size 9 --steps 2 --workers 0"
        assert importlib.import_module(TRAIN).main(options.split()) == 0
    return folder


def test_a_training_run_ends_in_exports_that_both_readers_open(run_folder: Path) -> None:
    import lightly_train

    for name in ("best.pth", "last.pth", "exported_models/exported_best.pt"):
        checkpoint = read(run_folder / name)
        assert checkpoint.spec.name == "dinov3/vitt16-eomt"
        assert checkpoint.spec.class_names == ("background", "head")
        assert checkpoint.spec.image_size == (32, 32) and not checkpoint.notes
        theirs = lightly_train.load_model(run_folder / name, device="cpu").state_dict()
        assert all(torch.equal(theirs[key], value) for key, value in checkpoint.weights.items())
    config = json.loads((run_folder / "run_config.json").read_text())
    assert config["steps"] == 2 and config["images_per_step"] == 9 and config["seconds"] > 0


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(1)
    with VideoWriter(folder / "a.mp4", 66, 48, 25) as writer:
        for _ in range(3):
            writer.write(rng.integers(0, 255, (48, 66, 3), dtype=np.uint8))
    return folder


def test_both_modes_segment_a_clip(
    infer: ModuleType, run_folder: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = run_folder / "exported_models" / "exported_best.pt"
    base = ["--model", str(model), "--video-dir", str(clip), "--device", "cpu"]
    masks = {}
    for mode in ("upstream_script", "upstream_predict"):
        out = tmp_path / mode
        assert infer.main([*base, "--out-dir", str(out), "--mode", mode]) == 0
        report = json.loads((out / f"timings_{mode}.json").read_text())["videos"]["a.mp4"]
        assert report["frames"] == 3 and report["fps_total"] == pytest.approx(3 / report["total_s"])
        for stage in ("prep", "model", "post", "write"):
            times = report["per_frame_ms"][stage]
            assert len(times) == 3 and min(times) >= 0
            assert report["ms"][stage]["mean"] == pytest.approx(sum(times[1:]) / 2)
        with av.open(str(out / "a" / "overlay.mp4")) as overlay:
            assert sum(1 for _ in overlay.decode(video=0)) == 3
        with av.open(str(out / "a" / "masks.mkv")) as video:
            masks[mode] = np.stack([frame.to_ndarray(format="gray") for frame in video.decode(video=0)])
    assert masks["upstream_script"].shape == (3, 48, 66)
    np.testing.assert_array_equal(masks["upstream_script"], masks["upstream_predict"])
    capsys.readouterr()
    assert infer.main([*base, "--out-dir", str(tmp_path / "upstream_script")]) == 2
    assert "exists: choose another --out-dir or pass --overwrite" in one_line(capsys)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--video-dir", "nowhere"], "no such folder: --video-dir nowhere"),
        (["--video-dir", "{empty}"], "holds no video"),
        (["--video-dir", "{text}"], "can't be opened as a video"),
        (["--model", "absent.pt"], "absent.pt: no such checkpoint"),
        (["--device", "tpu9"], "unknown device 'tpu9'"),
        (["--device", "cuda:99"], "CUDA device"),
    ],
)
def test_inference_refuses_bad_input(
    infer: ModuleType,
    run_folder: Path,
    clip: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("no video")
    places = {"{empty}": str(tmp_path / "empty"), "{text}": str(tmp_path / "text.mp4")}
    base = f"--model {run_folder / 'best.pth'} --video-dir {clip} --out-dir {tmp_path / 'out'}".split()
    assert infer.main([*base, *(places.get(option, option) for option in options)]) == 2
    assert said in one_line(capsys)
    assert not list(tmp_path.glob("out/**/*.mkv"))
