"""PNG-mask folders, read and written; and that LightlyTrain reads the same masks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from fasteomt.data.coco import load_coco
from fasteomt.data.dataset import SegmentationSet, open_dataset
from fasteomt.data.folders import export_masks
from fasteomt.errors import InputError

CLASSES = {"0": "background", "7": "head"}
MASK = np.array([[0, 7, 7], [0, 0, 7]], np.uint8)


def write(
    root: Path, masks: dict[str, np.ndarray | Image.Image], classes: dict[str, object] | None = None
) -> Path:
    """ROOT/valid with a JPEG for each mask, of the mask's size."""
    for name, mask in masks.items():
        picture = mask if isinstance(mask, Image.Image) else Image.fromarray(mask)
        for folder in ("images", "masks"):
            (root / "valid" / folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", picture.size).save(root / "valid" / "images" / f"{name}.jpg")
        picture.save(root / "valid" / "masks" / f"{name}.png")
    (root / "classes.json").write_text(json.dumps(CLASSES if classes is None else classes))
    return root


def error_of(root: Path) -> str:
    with pytest.raises(InputError) as caught:
        [sample.mask() for sample in open_dataset(root)]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def palette(mask: np.ndarray) -> Image.Image:
    picture = Image.fromarray(mask).convert("P")
    picture.putdata(mask.ravel().tolist())
    picture.putpalette([channel for i in range(256) for channel in (255 - i, i, 90)])
    return picture


def test_grey_8_bit_16_bit_and_palette_are_ids(tmp_path: Path) -> None:
    write(tmp_path, {"grey": MASK, "wide": MASK.astype(np.uint16), "colours": palette(MASK)})
    dataset = open_dataset(tmp_path)
    assert dataset.classes == {0: "background", 7: "head"}
    assert [sample.name for sample in dataset] == ["colours.jpg", "grey.jpg", "wide.jpg"]
    for sample in dataset:
        assert sample.mask().dtype == np.uint8
        np.testing.assert_array_equal(sample.mask(), MASK)
        assert sample.rgb().shape == (*sample.size, 3) == (2, 3, 3)


def test_16_bit_ids_do_not_wrap(tmp_path: Path) -> None:
    """Ids past 255."""
    mask = np.array([[0, 300], [65535, 7]], np.uint16)
    write(tmp_path, {"a": mask}, {"0": "background", "7": "head", "300": "hat", "65535": "hair"})
    read = open_dataset(tmp_path)[0].mask()
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read, mask)


def test_one_bit_mask_holds_0_and_1(tmp_path: Path) -> None:
    write(tmp_path, {"a": Image.fromarray(MASK > 0)}, {"0": "background", "1": "head"})
    np.testing.assert_array_equal(open_dataset(tmp_path)[0].mask(), (MASK > 0).astype(np.uint8))


def test_ignore_id_is_allowed_when_declared(tmp_path: Path) -> None:
    """Ignore 255."""
    mask = np.array([[0, 255, 7]], np.uint8)
    dataset = open_dataset(write(tmp_path, {"a": mask}, {**CLASSES, "ignore": 255}))
    assert dataset.ignore == 255
    assert dataset.classes == {0: "background", 7: "head"}
    np.testing.assert_array_equal(dataset[0].mask(), mask)


def test_unknown_id_names_file_and_id(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, {"ok": MASK, "wrong": np.array([[0, 9]], np.uint8)}))
    assert "wrong.png" in message
    assert "id 9" in message


def test_colour_mask_is_refused(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, {"a": Image.new("RGB", (3, 2))}))
    assert "a.png" in message
    assert "RGB" in message


def test_sizes_that_differ(tmp_path: Path) -> None:
    write(tmp_path, {"a": MASK})
    Image.new("RGB", (5, 4)).save(tmp_path / "valid" / "images" / "a.jpg")
    message = error_of(tmp_path)
    assert "a.png is 3x2 pixels but 5x4 in its image a.jpg" in message


@pytest.mark.parametrize("lenient", [False, True])
def test_mask_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lenient: bool) -> None:
    """Even where another library, as LightlyTrain does, tells Pillow to fill up what is missing."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    noise = np.random.default_rng(0).choice(np.array([0, 7], np.uint8), (64, 64))
    path = write(tmp_path, {"a": noise}) / "valid" / "masks" / "a.png"
    path.write_bytes(path.read_bytes()[:200])
    assert "a.png" in error_of(tmp_path)
    assert lenient == ImageFile.LOAD_TRUNCATED_IMAGES


def test_lone_images_and_masks_are_counted(tmp_path: Path) -> None:
    write(tmp_path, {"a": MASK, "b": MASK, "sub/c": MASK})
    (tmp_path / "valid" / "masks" / "b.png").unlink()
    (tmp_path / "valid" / "images" / "sub" / "c.jpg").unlink()
    dataset = open_dataset(tmp_path)
    assert [sample.name for sample in dataset] == ["a.jpg"]
    assert any("1 images without a mask" in w and "b.jpg" in w for w in dataset.warnings)
    assert any("1 masks without an image" in w and "c.png" in w for w in dataset.warnings)


def test_no_pairs_no_images_no_classes(tmp_path: Path) -> None:
    write(tmp_path, {"a": MASK})
    (tmp_path / "valid" / "masks" / "a.png").unlink()
    assert "no image with a mask" in error_of(tmp_path)
    (tmp_path / "valid" / "images" / "a.jpg").unlink()
    (tmp_path / "valid" / "images").rmdir()
    assert "images is missing" in error_of(tmp_path)
    (tmp_path / "classes.json").unlink()
    assert "classes.json is missing" in error_of(tmp_path)


def test_two_images_for_one_mask(tmp_path: Path) -> None:
    write(tmp_path, {"a": MASK})
    Image.new("RGB", (3, 2)).save(tmp_path / "valid" / "images" / "a.png")
    assert "share the mask" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"0": "background", "1": "head", "4": "head"}', "classes 1 and 4"),
        ('{"0": "background", "00": "head"}', "twice"),
        ('{"0": "background", "x": "head"}', "unclear"),
        ('{"0": {"name": "background"}}', "unclear"),
        ('{"0": "background", "ignore": "255"}', "unclear"),
        ('{"0": "background", "ignore": 0}', "ignores one of them"),
        ("{}", "names no classes"),
        ("[1]", "not a JSON object"),
        ("3", "not a JSON object"),
        ('{"0": "backgr', "can't be read as JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"0": ' + "[" * 100_000, "nested too deeply"),
        ('{"0": "background", "' + "9" * 5000 + '": "head"}', "unclear"),
        ('{"0": "background", "1": ' + "9" * 5000 + "}", "can't be read as JSON"),
        ('{"0": "background", "2147483647": "head"}', "unclear"),
        ('{"0": "background", "1": ["head"]}', "unclear"),
        ('{"0": "background", "1": null}', "unclear"),
        ('{"0": "background", "1": "\\ud800"}', "unclear"),
        ('{"0": "background", "1": "he\\u001bad"}', "unclear"),
        ('{"0": "background", "\\ud800": "head"}', "unclear"),
        ('{"0": "background", "ignore": true}', "unclear"),
        ('{"0": "background", "ignore": 1' + "0" * 400 + "}", "unclear"),
    ],
)
def test_classes_that_clash_or_are_unclear(tmp_path: Path, text: str, expected: str) -> None:
    """Class names that clash: one line with both ids."""
    write(tmp_path, {"a": MASK})
    (tmp_path / "classes.json").write_text(text)
    assert expected in error_of(tmp_path)


def test_classes_with_a_byte_order_mark_or_in_another_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": MASK}) / "classes.json"
    text = path.read_text()
    path.write_text(text, encoding="utf-8-sig")
    assert open_dataset(tmp_path).classes == {0: "background", 7: "head"}
    path.write_text(text, encoding="utf-16")
    assert "not UTF-8" in error_of(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("classes.json", "not a regular file"),
        ("valid/images/a.jpg", "not a regular file"),
        ("valid/masks/a.png", "no image with a mask"),
    ],
)
def test_pipes_are_not_waited_for(tmp_path: Path, place: str, expected: str) -> None:
    path = write(tmp_path, {"a": MASK}) / place
    path.unlink()
    os.mkfifo(path)
    assert expected in error_of(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="needs names that aren't Unicode")
def test_digest_of_file_names_that_are_not_utf_8(tmp_path: Path) -> None:
    write(tmp_path, {os.fsdecode(b"\xff"): MASK})
    assert len(open_dataset(tmp_path).digest()) == 64


# Export


def coco_set(folder: Path, head: int = 3) -> SegmentationSet:
    """Two images of one square and a crowd region, one of them in a subfolder."""
    folder.mkdir(parents=True)
    images = []
    for key, name in enumerate(("a.png", "sub/b.jpg")):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (16, 12), (key, 0, 0)).save(folder / name)
        images.append({"id": key, "file_name": name, "width": 16, "height": 12})
    square, crowd = [0, 0, 9, 0, 9, 9, 0, 9], [10, 0, 16, 0, 16, 6, 10, 6]
    coco = {
        "images": images,
        "categories": [{"id": head, "name": "head"}],
        "annotations": [
            {"id": 1, "image_id": 0, "category_id": head, "segmentation": [square]},
            {"id": 2, "image_id": 1, "category_id": head, "segmentation": [crowd], "iscrowd": 1},
        ],
    }
    path = folder / "_annotations.coco.json"
    path.write_text(json.dumps(coco))
    return load_coco(path)


def test_export_round_trip(tmp_path: Path) -> None:
    """Training on exported masks sees what evaluation sees."""
    dataset = coco_set(tmp_path / "coco")
    out = tmp_path / "out" / "valid"
    assert export_masks(dataset, out) == {"images": str(out / "images"), "masks": str(out / "masks")}
    again = open_dataset(tmp_path / "out")
    assert (again.classes, again.ignore, again.warnings) == (dataset.classes, 255, [])
    assert [sample.name for sample in again] == [sample.name for sample in dataset]
    for new, old in zip(again, dataset, strict=True):
        np.testing.assert_array_equal(new.mask(), old.mask())
        np.testing.assert_array_equal(new.rgb(), old.rgb())
    assert (again[0].mask() == 3).sum() == 81
    assert (again[1].mask() == 255).sum() == 36
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["valid"]  # nothing temporary is left


@pytest.mark.parametrize("head", [3, 300])
def test_lightly_train_reads_exported_masks_as_they_are(tmp_path: Path, head: int) -> None:
    """The same in training, with 16-bit masks too; crowd pixels are ignored there."""
    upstream = pytest.importorskip("lightly_train._data.mask_semantic_segmentation_dataset")
    dataset = coco_set(tmp_path / "coco", head=head)
    split = export_masks(dataset, tmp_path / "out")
    arguments = upstream.MaskSemanticSegmentationDataArgs(
        train=split, val=split, classes=dataset.classes
    ).get_train_args()
    files = sorted(arguments.list_image_info(), key=lambda row: row["image_filepaths"])
    reader = upstream.MaskSemanticSegmentationDataset(dataset_args=arguments, image_info=files)
    for row, sample in zip(files, dataset, strict=True):
        stored = upstream.file_helpers.open_mask_numpy(Path(row["mask_filepaths"]))
        ids = reader.map_mask_labels_to_class_ids(stored)
        np.testing.assert_array_equal(ids, np.where(sample.mask() == 255, -100, sample.mask().astype(int)))
        image = upstream.file_helpers.open_image_numpy(Path(row["image_filepaths"]))
        np.testing.assert_array_equal(image, sample.rgb())


def test_any_number_of_workers_exports_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasteomt.data.folders._WORTH_PROCESSES", 1)
    dataset = coco_set(tmp_path / "coco")
    masks = [export_masks(dataset, tmp_path / str(n), workers=n)["masks"] for n in (0, 1, 2)]
    written = [{p.relative_to(m): p.read_bytes() for p in Path(m).rglob("*.png")} for m in masks]
    assert {path.as_posix() for path in written[0]} == {"a.png", "sub/b.png"}
    assert written[0] == written[1] == written[2]


def test_export_of_ids_past_255_is_16_bit(tmp_path: Path) -> None:
    mask = np.array([[0, 300]], np.uint16)
    dataset = open_dataset(write(tmp_path / "in", {"a": mask}, {"0": "background", "300": "head"}))
    export_masks(dataset, tmp_path / "out")
    with Image.open(tmp_path / "out" / "masks" / "a.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), mask)


def test_export_touches_nothing_that_exists(tmp_path: Path) -> None:
    dataset = coco_set(tmp_path / "coco")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not an empty folder"):
        export_masks(dataset, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    dataset = open_dataset(write(tmp_path / "in", {"a": MASK, "b": np.array([[9]], np.uint8)}))
    with pytest.raises(InputError, match=r"b\.png"):
        export_masks(dataset, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_export_refuses_images_that_share_a_stem(tmp_path: Path) -> None:
    dataset = coco_set(tmp_path / "coco")
    twin = dataset.samples[0]
    twins = SegmentationSet(
        dataset.root, dataset.classes, (twin, type(twin)("a.jpg", twin.image_path, twin.size, twin.read_mask))
    )
    with pytest.raises(InputError, match=r"a\.png and a\.jpg"):
        export_masks(twins, tmp_path / "out")


def test_export_refuses_ids_that_no_png_holds(tmp_path: Path) -> None:
    dataset = coco_set(tmp_path / "coco")
    with pytest.raises(InputError, match="70000"):
        export_masks(
            SegmentationSet(dataset.root, {0: "background", 70000: "head"}, dataset.samples), tmp_path / "o"
        )
