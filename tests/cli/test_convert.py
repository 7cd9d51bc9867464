"""`fasteomt convert`: forms and types, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fasteomt.checkpoint import Checkpoint, read, write_export
from fasteomt.cli.main import main


@pytest.fixture
def source(tmp_path: Path, small_checkpoint: Checkpoint) -> Path:
    return write_export(tmp_path / "last.ckpt", small_checkpoint.spec, small_checkpoint.weights)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(("dtype", "stored"), [("keep", torch.float32), ("bf16", torch.bfloat16)])
def test_forms_and_types(
    tmp_path: Path, source: Path, small_checkpoint: Checkpoint, suffix: str, dtype: str, stored: torch.dtype
) -> None:
    target = tmp_path / f"model{suffix}"
    assert main(["convert", str(source), str(target), "--dtype", dtype]) == 0
    found = read(target)
    assert found.spec == small_checkpoint.spec
    weight = found.weights["queries.weight"]
    assert weight.dtype == stored
    assert torch.equal(weight, small_checkpoint.weights["queries.weight"].to(stored))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["model.onnx"], "must end in"),
        (["model.pt", "--dtype", "int3"], "choose keep"),
        (["last.ckpt"], "must end in"),
        (["taken.pt"], "exists"),
        (["x" * 5000 + ".pt"], "File name too long"),
    ],
)
def test_refusals_leave_everything_as_it_was(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], match: str
) -> None:
    (tmp_path / "taken.pt").write_text("mine")
    assert main(["convert", str(source), str(tmp_path / arguments[0]), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert match in error
    assert error.count("\n") == 1
    assert (tmp_path / "taken.pt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", "taken.pt"]


def test_a_file_is_not_converted_onto_itself(tmp_path: Path, source: Path) -> None:
    same = source.rename(tmp_path / "model.pt")
    before = same.read_bytes()
    assert main(["convert", str(same), str(same), "--overwrite"]) == 2
    assert same.read_bytes() == before


def test_weights_past_fp16_are_refused(
    tmp_path: Path, small_checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = small_checkpoint.weights | {"queries.weight": torch.full((8, 64), 1e5)}
    path = write_export(tmp_path / "large.pt", small_checkpoint.spec, weights)
    assert main(["convert", str(path), str(tmp_path / "half.pt"), "--dtype", "fp16"]) == 2
    assert "65504" in capsys.readouterr().err
    assert not (tmp_path / "half.pt").exists()


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2fnuz], ids=str)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_8_bit_weights_are_widened(
    tmp_path: Path, small_checkpoint: Checkpoint, stored: torch.dtype, suffix: str
) -> None:
    path = write_export(
        tmp_path / "small.ckpt", small_checkpoint.spec, small_checkpoint.weights, dtype=stored
    )
    assert main(["convert", str(path), str(tmp_path / f"half{suffix}"), "--dtype", "fp16"]) == 0
    weight = read(tmp_path / f"half{suffix}").weights["queries.weight"]
    assert weight.dtype == torch.float16
    assert torch.equal(weight, small_checkpoint.weights["queries.weight"].to(stored).half())


def test_weights_past_the_narrower_type_are_refused_whatever_it_is(
    tmp_path: Path, small_checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = small_checkpoint.weights | {"queries.weight": torch.full((8, 64), 1e300, dtype=torch.float64)}
    path = write_export(tmp_path / "large.pt", small_checkpoint.spec, weights)
    capsys.readouterr()
    for dtype in ("fp32", "bf16", "fp16"):
        assert main(["convert", str(path), str(tmp_path / "out.pt"), "--dtype", dtype]) == 2
        assert f"a weight of 1e+300 is past {dtype}'s" in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()


def test_output_is_the_path_as_it_is(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    target = tmp_path / ("[bold]" + "long" * 20 + ".pt")
    assert main(["convert", str(source), str(target)]) == 0
    assert capsys.readouterr().out.startswith(f"{target}: dinov3/vitt16-eomt, ")
