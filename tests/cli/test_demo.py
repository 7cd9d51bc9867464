"""demo: from nothing to a page that opens."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import av
import numpy as np
import pytest

from fasteomt.checkpoint import random_checkpoint, write_safetensors
from fasteomt.cli.main import main
from fasteomt.demo_page import PREDICTED, TRUE, Page, StripFrame, outlined, render

FRAMES = 5


@pytest.fixture
def head_model(tmp_path, small_spec) -> Path:
    """Random weights, with the class names that the demo looks for; quick."""
    spec = dataclasses.replace(small_spec, class_ids=(0, 7), class_names=("background", "head"))
    return write_safetensors(tmp_path / "heads.safetensors", spec, random_checkpoint(spec).weights)


def frames_in(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_demo_leaves_a_page_whose_files_are_there(head_model, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--frames", str(FRAMES), "--model", str(head_model)]) == 0
    said = capsys.readouterr().out
    assert (out / "index.html").resolve().as_uri() in said
    html = (out / "index.html").read_text("utf-8")
    links = re.findall(r"(?:href|src)=\"(?!data:)([^\"]+)\"", html)
    assert "clip/overlay.mp4" in links
    for link in links:
        assert (out / link).is_file(), link  # relative, and nothing from elsewhere
    assert html.count("data:image/jpeg;base64,") == FRAMES  # as many as there are, up to six
    assert f"{FRAMES} of 640x480 pixels" in html
    for path in ("clip.mp4", "clip.masks.mkv", "clip/masks.mkv", "clip/overlay.mp4"):
        assert frames_in(out / path) == FRAMES
    iou = re.search(r"<th>head IoU to the truth</th><td>(\d\.\d{4})", html)
    assert iou is not None
    assert f"head IoU to the truth  {iou[1]}" in said


def test_demo_never_replaces_what_is_there_without_overwrite(head_model, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("mine")
    command = ["demo", "--out", str(out), "--frames", "2", "--model", str(head_model)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "not empty" in error
    assert "--overwrite" in error
    assert [path.name for path in out.iterdir()] == ["index.html"]
    assert (out / "index.html").read_text() == "mine"

    (out / "notes.txt").write_text("mine too")
    assert main([*command, "--overwrite"]) == 0
    assert (out / "index.html").read_text("utf-8").startswith("<!doctype html>")
    assert (out / "notes.txt").read_text() == "mine too"


def test_demo_into_a_file_or_with_a_model_without_heads_is_refused(tmp_path, small_checkpoint, capsys):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert main(["demo", "--out", str(taken)]) == 2
    assert "taken is not a folder" in capsys.readouterr().err
    assert main(["demo", "--out", str(taken / "below")]) == 2
    assert "taken is not a folder" in capsys.readouterr().err
    assert taken.read_text() == "mine"

    model = write_safetensors(tmp_path / "m.safetensors", small_checkpoint.spec, small_checkpoint.weights)
    assert main(["demo", "--out", str(tmp_path / "out"), "--model", str(model)]) == 2
    assert "no class 'head'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_demo_with_the_shipped_model_finds_the_heads(tmp_path, monkeypatch):
    """README followed cold, offline and without a GPU, shows masks that are right."""

    def refuse(*args, **kwargs):
        raise AssertionError("the demo opened a network connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--frames", "4", "--device", "cpu"]) == 0
    html = (out / "index.html").read_text("utf-8")
    iou = re.search(r"<th>head IoU to the truth</th><td>(\d\.\d{4})", html)
    assert iou is not None
    assert float(iou[1]) >= 0.8


def test_outlines_mark_both_borders_and_leave_the_rest(tmp_path):
    image = np.full((240, 240, 3), 99, np.uint8)
    predicted, true = np.zeros((2, 240, 240), bool)
    predicted[20:60, 20:60] = True
    true[120:180, 120:180] = True
    drawn = outlined(image, predicted, true)
    assert tuple(drawn[20, 40]) == PREDICTED
    assert tuple(drawn[120, 150]) == TRUE
    assert tuple(drawn[40, 40]) == (99, 99, 99)
    assert (image == 99).all()  # a copy


def test_page_escapes_text_and_loads_nothing_from_elsewhere():
    page = Page(
        summary="<b>&",
        video="clip/a b.mp4",
        strip=[StripFrame(np.zeros((8, 8, 3), np.uint8), 'frame "0"')],
        facts=[("model", "<script>x</script>")],
        areas=[(0.0, 0.0)],
        files=[("clip/a&b.mkv", "masks")],
        command="fasteomt demo",
    )
    html = render(page)
    assert "<script" not in html
    assert "&lt;b&gt;&amp;" in html
    assert 'alt="frame &quot;0&quot;"' in html
    assert not re.search(r"(?:src|href|url\()\W*(?:https?:)?//", html)
    assert "prefers-color-scheme: dark" in html
    assert "nan" not in html


@pytest.mark.parametrize("name", ["index.html", "clip.masks.mkv", "clip/overlay.mp4", "clip/summary.json"])
def test_demo_looks_at_all_targets_before_it_writes(head_model, tmp_path, capsys, name):
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    (out / "clip.mp4").write_text("earlier")
    before = sorted(out.rglob("*"))
    command = ["demo", "--out", str(out), "--frames", "2", "--model", str(head_model), "--overwrite"]
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(out.rglob("*")) == before
    assert (out / "clip.mp4").read_text() == "earlier"


def test_demo_never_replaces_its_model(head_model, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    model = head_model.rename(out / "index.html")
    before = model.read_bytes()
    assert main(["demo", "--out", str(out), "--frames", "2", "--model", str(model), "--overwrite"]) == 2
    assert "is the model" in capsys.readouterr().err
    assert model.read_bytes() == before
