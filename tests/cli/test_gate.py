"""`fasteomt gate` end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fasteomt.bench.schema import GateRecord
from fasteomt.checkpoint import random_checkpoint, write_export
from fasteomt.cli.main import main
from fasteomt.engine import Engine
from fasteomt.gates import footage
from fasteomt.gates.store import read_verdicts
from fasteomt.model.spec import ModelSpec
from fasteomt.ops import target
from fasteomt.stacks import STACKS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path, small_spec: ModelSpec) -> Path:
    """Weights with which both classes have thousands of pixels in every frame."""
    found = random_checkpoint(small_spec, 4)
    write_export(tmp_path / "model.pt", found.spec, found.weights)
    return tmp_path / "model.pt"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Eight noisy pictures."""
    folder = tmp_path / "clip"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for index in range(8):
        noise = torch.randint(0, 256, (4, 6, 3), dtype=torch.uint8, generator=generator).numpy()
        Image.fromarray(noise).resize((96, 64), Image.Resampling.BICUBIC).save(folder / f"{index}.png")
    return folder


def gate(model: Path, *more: object) -> int:
    return main(["gate", "--device", "cpu", "--model", str(model), *map(str, more)])


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    (found,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("fasteomt: error: ")]
    return found


def test_fp32_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path, clip: Path, small_spec: ModelSpec
) -> None:
    out, picture = tmp_path / "gate.json", tmp_path / "gate.png"
    assert gate(model, "--video", clip, "--stack", "fp32", "--json", out, "--picture", picture) == 0
    content: dict[str, Any] = json.loads(out.read_text())
    assert [(one["gate"], one["passed"]) for one in content["verdicts"]] == [
        ("M", True),
        ("H", True),
        ("G", None),
        ("O", True),
    ]
    assert (content["frames"], content["width"], content["height"]) == (8, 96, 64)
    assert {one["name"] for one in content["classes"]["H"]} == {"background", "object"}
    assert Image.open(picture).format == "PNG"
    shown = capsys.readouterr().out
    assert "not run" in shown
    assert "failed" not in shown

    plan = STACKS["fp32"].plan(small_spec, target.CPU)
    kept = read_verdicts(content["checkpoint"], plan, content["clip"], content["gpu"])
    assert {name: one.passed for name, one in kept.items()} == {"M": True, "H": True, "O": True}
    for one in kept.values():
        GateRecord.model_validate(one.record())


def test_a_failed_gate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    clip: Path,
) -> None:
    """A stack whose mask has all but lost a class: told with figures, kept, and exit code 4."""
    scores = Engine.scores

    def faulty(self: Engine, frame: torch.Tensor) -> torch.Tensor:
        found = scores(self, frame)
        return found * torch.tensor([1, 0.9])[:, None, None] if self.stack.name == "bf16" else found

    monkeypatch.setattr(Engine, "scores", faulty)
    out = tmp_path / "gate.json"
    assert gate(model, "--video", clip, "--stack", "bf16", "--gates", "m,h", "--json", out) == 4
    content = json.loads(out.read_text())
    assert [(one["gate"], one["passed"]) for one in content["verdicts"]] == [("M", False), ("H", False)]
    captured = capsys.readouterr()
    assert captured.out.count("│ failed") == 2
    pooled = content["verdicts"][1]["values"]["pooled_iou"]
    assert f"stack bf16 failed a gate on {clip}: M: iou " in captured.err
    assert f"H: pooled_iou {pooled!r} < 0.99" in captured.err


def test_without_a_video_one_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    for name, value in (("WIDTH", 96), ("HEIGHT", 64), ("FRAMES", 9), ("BITRATE", 500_000)):
        monkeypatch.setattr(footage, name, value)
    assert gate(model, "--stack", "fp32", "--gates", "H") == 0
    captured = capsys.readouterr()
    assert "a generated clip" in captured.out
    assert "9 frames of 96x64" in captured.out


def test_nothing_was_run(capsys: pytest.CaptureFixture[str], model: Path, clip: Path) -> None:
    assert gate(model, "--video", clip, "--gates", "G") == 3
    assert "no gate was run: cpu has no CUDA graphs" in line(capsys)


def test_an_unwritable_cache_is_told_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, model: Path, clip: Path
) -> None:
    monkeypatch.setenv("FASTEOMT_CACHE", str(model))
    assert gate(model, "--video", clip, "--stack", "fp32", "--gates", "H") == 0
    assert "verdicts are not kept for later runs" in caplog.text


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (["--gates", "M,X"], "--gates 'M,X': choose among M, H, G, O"),
        (["--gates", ","], "choose among"),
        (["--stack", "int3"], "unknown stack 'int3'"),
        (["--device", "cuda:99"], "device 'cuda:99'"),
        (["--video", "none.mp4"], "none.mp4"),
        (["--truth", "t.mkv"], "--truth needs the --video"),
        (["--json", "a.png", "--picture", "./a.png"], "are the same file"),
        (["--json", "model.pt", "--overwrite"], "would replace model.pt, which is judged"),
        (["--picture", "a.jpg"], "--picture a.jpg: must end in .png"),
        (["--json", "model.pt"], "model.pt exists"),
        (["--json", "model.pt", "--overwrite", "--video", "clip"], "would replace model.pt, which is judged"),
        (["--picture", "clip/0.png", "--overwrite", "--video", "clip"], "would replace clip/0.png"),
    ],
)
def test_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model: Path,
    clip: Path,
    more: list[str],
    match: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["gate", "--model", "model.pt", "--device", "cpu", *more]) == 2
    assert match in line(capsys)
    assert sorted(tmp_path.rglob("*")) == before
