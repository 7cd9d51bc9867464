"""results.json on the disk: what is read is what was written, and runs of other GPUs stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from example_results import ROWS, results, run

from fasteomt.bench.results import load, problems, save
from fasteomt.errors import InputError


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    assert save(path, results()) == results() == load(path)
    assert problems(load(path)) == []


def test_one_run_for_each_gpu_and_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    old = run(gpu="NVIDIA H200")
    other = run(gpu="NVIDIA A100", arch="sm_80")
    new = run(ROWS[:1], gpu="NVIDIA H200", date="2026-02-01T00:00:00Z")
    save(path, results(old))
    save(path, results(other))
    merged = save(path, results(new, title="measured again"))
    assert merged.runs == (other, new)
    assert merged.title == "measured again"
    assert load(path) == merged
    assert problems(merged) == []


def test_an_older_run_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(path, results())
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"results\.json: holds a run on NVIDIA H200 .* newer"):
        save(path, results(run(date="2025-12-31T23:59:59Z")))
    assert path.read_bytes() == before


def test_results_of_another_round_stay(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(path, results())
    with pytest.raises(InputError, match=r"holds results of infer-opt/round2_fused, not of infer-opt/round3"):
        save(path, results(round="infer-opt/round3"))
    assert load(path) == results()


def test_a_damaged_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"round": ')
    with pytest.raises(InputError, match="can't be read as JSON"):
        save(path, results())
    assert path.read_text() == '{"round": '


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"metric": "model_ms"', '"metric": "fps"', r"runs\.0\.rows\.0\.metric: .*unknown metric"),
        ('"by": "native"', '"by": "guessed"', r"runs\.0\.rows\.0\.by"),
        ('"median": 9.0', '"median": "9.0"', r"runs\.0\.rows\.0\.median"),
        ('"median": 9.0', '"median": NaN', r"runs\.0\.rows\.0\.median"),
        ('"median": 9.0', '"median": 8.0, "median": 9.0', "'median' stands there twice"),
        ('"worst_iou": 0.99', '"worst_iou": 1e999', r"runs\.0\.gates\.0\.values"),
        ('"kind": "change"', '"kind": "change", "extra": 1', "extra"),
        ('"title": "fused norms",', "", "title"),
    ],
)
def test_what_has_not_the_form_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "results.json"
    save(path, results())
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(InputError, match=expected) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_what_is_no_results_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "results.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="the file: "):
        load(tmp_path / "list.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="can't be read as JSON"):
        load(tmp_path / "bytes.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="can't be read as JSON"):
        load(tmp_path / "deep.json")


def test_a_hand_edited_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(path, results())
    content = json.loads(path.read_text("utf-8"))
    content["runs"][0]["rows"][2]["median"] = 3.9
    path.write_text(json.dumps(content))
    found = problems(load(path))
    assert any("seal" in line for line in found)
    assert any("ratio" in line for line in found)
