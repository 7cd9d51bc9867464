"""Images and folders of images."""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from clips import RedPredictor, cut, number_in, picture
from PIL import Image

from fasteomt.errors import InputError, PartialResultError
from fasteomt.video import Summary, open_source, run_video
from fasteomt.video.images import output_names
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
        "b.png.png",
    ]


def test_output_names_never_collide() -> None:
    """For every choice of names made to collide: by stem, by whole name, by case, with the numbered form."""
    stems = ("a", "A", "a.png", "000000-a.png", "000001-a.png", "\u00df", "SS")
    paths = [Path(stem + suffix) for stem in stems for suffix in (".png", ".jpg")]
    for count in (1, 2, 3, 4):
        for chosen in itertools.combinations(paths, count):
            names = output_names(chosen)
            assert len({name.casefold() for name in names}) == count, chosen
    # Even if one file is listed twice.
    assert len(set(output_names([Path("x/a.png"), Path("y/a.png"), Path("z/a.jpg")]))) == 3


def test_images_whose_names_build_on_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, name in enumerate(("a.bmp", "a.png", "a.png.png"), start=1):
        Image.fromarray(picture(number)).save(folder / name)
    assert run_video(RedPredictor(), folder, tmp_path / "out", save=("masks",)).frames_out == 3
    masks = sorted((tmp_path / "out/photos/masks").iterdir())
    assert [number_in(np.asarray(Image.open(path)) * 255) for path in masks] == [1, 2, 3]


def test_overwriting_image_results(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    run_video(RedPredictor(), folder, tmp_path / "out")
    (folder / "img10.jpg").unlink()
    run_video(RedPredictor(), folder, tmp_path / "out", save=("masks",), overwrite=True)
    out = tmp_path / "out/photos"
    assert sorted(p.name for p in out.iterdir()) == ["masks", "summary.json"]
    assert sorted(p.name for p in (out / "masks").iterdir()) == ["img1.png", "img2.png"]


def test_folder_that_no_run_made_is_never_removed(tmp_path: Path) -> None:
    """--out that leads back into a data set: its masks/ is the user's, whatever --overwrite says."""
    folder = tmp_path / "ds/valid"
    folder.parent.mkdir()
    folder_of(folder)
    (folder / "masks").mkdir()
    (folder / "masks/mine.png").write_bytes(b"mine")
    predictor = RedPredictor()
    with pytest.raises(InputError, match=r"valid/masks is not of an earlier result"):
        run_video(predictor, folder, tmp_path / "ds", overwrite=True)
    assert predictor.seen == []
    assert (folder / "masks/mine.png").read_bytes() == b"mine"
    assert not (folder / "areas.csv").exists()
    # What the run does not write is not in its way.
    run_video(predictor, folder, tmp_path / "ds", save=("areas",), overwrite=True)
    assert (folder / "masks/mine.png").read_bytes() == b"mine"


def test_link_in_place_of_an_output_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = folder_of(tmp_path / "photos")
    (tmp_path / "out/photos").mkdir(parents=True)
    (tmp_path / "out/photos/overlay").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="overlay is not of an earlier result"):
        run_video(RedPredictor(), folder, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out/photos/overlay").is_symlink()


def test_images_below_a_target_are_kept(tmp_path: Path) -> None:
    """A result's own masks as the next source, with an --out that leads back to them."""
    folder = folder_of(tmp_path / "masks")
    run_video(RedPredictor(), folder, tmp_path / "out")
    inner = tmp_path / "out/masks/masks"
    before = {path.name: path.read_bytes() for path in inner.iterdir()}
    with pytest.raises(InputError, match=r"img1\.png is a source"):
        run_video(RedPredictor(), inner, tmp_path / "out", overwrite=True)
    assert {path.name: path.read_bytes() for path in inner.iterdir()} == before


def test_no_image_that_can_be_used(tmp_path: Path) -> None:
    """Alone or with others: refused before anything is made, with the file named once."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg"):
        Image.fromarray(picture(1)).save(tmp_path / "whole.jpg")
        cut(tmp_path / "whole.jpg", folder / name, 0.9)
    for spec in (folder, folder / "a.jpg"):
        with pytest.raises(InputError, match=r"a\.jpg: not a readable image") as caught:
            run_video(RedPredictor(), spec, tmp_path / "out")
        assert str(caught.value).count("a.jpg") == 1
    with pytest.raises(InputError, match=r"photos: none of 2 images can be used"):
        open_source(folder)
    assert not (tmp_path / "out").exists()


def test_image_that_is_all_but_a_line_is_skipped(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "photos")
    Image.new("RGB", (20000, 1)).save(folder / "img0.png")
    with pytest.raises(PartialResultError, match=r"img0\.png: a frame of 20000x1 pixels makes 20000 crops"):
        run_video(RedPredictor(), folder, tmp_path / "out")
    with pytest.raises(InputError, match="20000 crops"):
        open_source(folder / "img0.png")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of any bytes")
def test_names_that_are_no_text_lose_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / os.fsdecode(b"photos\xff"))
    (folder / "img1.png").rename(folder / os.fsdecode(b"img1\xe4.png"))
    summary = run_video(RedPredictor(), folder, tmp_path / "out")
    out = tmp_path / "out" / folder.name
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["source"] == str(folder)
    assert summary.frames_out == 3
    rows = (out / "areas.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 7
    assert any(row.startswith("img1\\udce4,") for row in rows)
    assert (out / "masks" / os.fsdecode(b"img1\xe4.png")).is_file()
