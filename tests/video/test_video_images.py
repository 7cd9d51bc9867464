"""Images and folders of images."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from clips import RedPredictor, number_in, picture
from PIL import Image

from fasteomt.errors import InputError, PartialResultError
from fasteomt.video import Summary, open_source, run_video
from fasteomt.video.inputs import find_inputs


def folder_of(path: Path) -> Path:
    path.mkdir()
    Image.fromarray(picture(1)).save(path / "img1.png")
    Image.fromarray(picture(2, 97, 61)).save(path / "img2.png")
    Image.fromarray(picture(10, 300, 200)).save(path / "img10.jpg", quality=95)
    (path / "notes.txt").write_text("x")
    return path


def test_image_folder(tmp_path: Path) -> None:
    """One source named by its folder; sizes differ; a mask and an overlay of each image's name and size."""
    predictor = RedPredictor()
    summary = run_video(predictor, folder_of(tmp_path / "photos"), tmp_path / "out")
    out = tmp_path / "out/photos"
    assert predictor.seen == [1, 2, 10]
    assert (summary.complete, summary.frames_in, summary.frames_out) == (True, 3, 3)
    assert sorted(p.name for p in out.iterdir()) == ["areas.csv", "masks", "overlay", "summary.json"]
    assert summary.outputs == {"masks": "masks", "overlay": "overlay", "areas": "areas.csv"}
    for name, number, size in (("img1", 1, (64, 48)), ("img2", 2, (97, 61)), ("img10", 10, (300, 200))):
        mask = Image.open(out / f"masks/{name}.png")
        overlay = Image.open(out / f"overlay/{name}.png")
        assert (mask.mode, mask.size, overlay.mode, overlay.size) == ("L", size, "RGB", size)
        assert number_in(np.asarray(mask) * 255) == number
    rows = list(csv.DictReader((out / "areas.csv").open()))
    assert [row["frame"] for row in rows[::2]] == ["img1", "img2", "img10"]
    assert {row["pts"] for row in rows} == {""}


def test_sixteen_bit_mask_of_an_image(tmp_path: Path) -> None:
    Image.fromarray(picture(3)).save(tmp_path / "a.png")
    run_video(RedPredictor((0, 300)), tmp_path / "a.png", tmp_path / "out", save=("masks", "masks-png"))
    mask = np.asarray(Image.open(tmp_path / "out/a/masks/a.png"))
    assert set(np.unique(mask)) == {0, 300}


def test_exif_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees to show
    Image.fromarray(np.rot90(picture(9))).save(tmp_path / "a.jpg", exif=exif, quality=95)
    with open_source(tmp_path / "a.jpg") as source:
        frame = next(iter(source))
        assert (source.width, source.height) == (64, 48)
    assert frame.rgb.shape == (48, 64, 3)
    assert number_in(frame.rgb[..., 0]) == 9


def test_image_that_cannot_be_read_is_skipped_and_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    (folder / "img2.png").write_bytes((folder / "img2.png").read_bytes()[:60])
    predictor = RedPredictor()
    with pytest.raises(PartialResultError, match=r"img2\.png") as caught:
        run_video(predictor, folder, tmp_path / "out")
    assert predictor.seen == [1, 10]
    summary = caught.value.summary
    assert isinstance(summary, Summary)
    assert (summary.decoded, summary.skipped, summary.complete) == (2, 1, False)
    out = tmp_path / "out/photos"
    assert sorted(p.name for p in (out / "masks.partial").iterdir()) == ["img1.png", "img10.png"]


def test_images_have_no_times(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    with pytest.raises(InputError, match="--start"):
        open_source(folder, start=1.0)
    with open_source(folder, stride=2) as source:
        assert [(frame.name, frame.pts) for frame in source] == [("img1", None), ("img10", None)]


def test_images_of_one_folder_belong_together(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    for spec in (folder, str(folder / "*.png"), [folder / "img1.png", folder / "img2.png"]):
        assert [one.name for one in find_inputs(spec)] == ["photos"]
    assert [one.name for one in find_inputs(folder / "img1.png")] == ["img1"]


def test_equal_stems_keep_their_suffix(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "a.bmp", "b.png"):
        Image.fromarray(picture(1)).save(folder / name)
    run_video(RedPredictor(), folder, tmp_path / "out", save=("masks",))
    assert sorted(p.name for p in (tmp_path / "out/photos/masks").iterdir()) == [
        "a.bmp.png",
        "a.png.png",
        "b.png",
    ]


def test_overwriting_image_results(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    run_video(RedPredictor(), folder, tmp_path / "out")
    (folder / "img10.jpg").unlink()
    run_video(RedPredictor(), folder, tmp_path / "out", save=("masks",), overwrite=True)
    out = tmp_path / "out/photos"
    assert sorted(p.name for p in out.iterdir()) == ["masks", "summary.json"]
    assert sorted(p.name for p in (out / "masks").iterdir()) == ["img1.png", "img2.png"]
