"""COCO files -> masks: shapes, overlap, classes, and every way such a file can be wrong."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from fasteomt.data.coco import load_coco
from fasteomt.data.dataset import SegmentationSet, open_dataset
from fasteomt.errors import InputError, brief

HEIGHT, WIDTH = 20, 30
SQUARE = [0, 0, 9, 0, 9, 9, 0, 9]
CATEGORIES = [{"id": 1, "name": "head"}, {"id": 2, "name": "hat"}]


def annotation(key: int, segmentation: Any, category: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": key, "image_id": 7, "category_id": category, "segmentation": segmentation} | more


def rectangle(left: float, top: float, right: float, bottom: float) -> list[float]:
    return [left, top, right, top, right, bottom, left, bottom]


def write(folder: Path, annotations: list[dict[str, Any]], **changes: Any) -> Path:
    """A COCO file with one 30x20 image, beside that image."""
    coco = {
        "images": [{"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}],
        "categories": CATEGORIES,
        "annotations": annotations,
    }
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (WIDTH, HEIGHT), (10, 20, 30)).save(folder / "a.png")
    path = folder / "_annotations.coco.json"
    path.write_text(json.dumps(coco | changes))
    return path


def mask_of(folder: Path, *segmentations: Any) -> np.ndarray:
    annotations = [annotation(key, segmentation) for key, segmentation in enumerate(segmentations, start=1)]
    return load_coco(write(folder, annotations))[0].mask()


def said(dataset: SegmentationSet, text: str) -> str:
    """The one warning that holds `text`."""
    found = [warning for warning in dataset.warnings if text in warning]
    assert len(found) == 1, dataset.warnings
    return found[0]


def error_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_coco(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Shapes


def test_square_0_to_9_covers_81_pixels(tmp_path: Path) -> None:
    """The rasteriser is pycocotools'."""
    mask = mask_of(tmp_path, [SQUARE])
    assert mask.dtype == np.uint8
    assert mask[:9, :9].all()
    assert mask.sum() == 81


def test_rle_list_string_and_polygon_agree(tmp_path: Path) -> None:
    """Uncompressed and compressed run lengths, and a flat list of numbers."""
    expected = mask_of(tmp_path, [rectangle(3, 2, 12, 9)])
    assert expected.sum() == 9 * 7
    columns = expected.ravel(order="F")
    changes = np.flatnonzero(np.diff(columns)) + 1
    counts = np.diff([0, *changes, columns.size]).tolist()
    compressed = coco_mask.encode(np.asfortranarray(expected))["counts"].decode()
    for segmentation in (
        {"size": [HEIGHT, WIDTH], "counts": counts},
        {"size": [HEIGHT, WIDTH], "counts": compressed},
        rectangle(3, 2, 12, 9),
    ):
        np.testing.assert_array_equal(mask_of(tmp_path, segmentation), expected)


@pytest.mark.parametrize(
    "rle",
    [
        {"size": [HEIGHT, WIDTH], "counts": [50, 50]},  # ends early
        {"size": [HEIGHT, WIDTH], "counts": [-1, 601]},
        {"size": [HEIGHT, WIDTH], "counts": [0.5, 599.5]},
        {"size": [HEIGHT, WIDTH], "counts": "52203"},
        {"size": [HEIGHT, WIDTH], "counts": "P"},  # says that more follows
        {"size": [HEIGHT, WIDTH], "counts": "\u00e9"},
        {"size": [WIDTH, HEIGHT], "counts": [100, 500]},
        {"size": [HEIGHT, WIDTH]},
    ],
)
def test_broken_rle_is_skipped_with_its_id(tmp_path: Path, rle: dict[str, Any]) -> None:
    dataset = load_coco(write(tmp_path, [annotation(41, rle), annotation(2, [SQUARE])]))
    assert "41" in said(dataset, "run lengths")
    assert dataset[0].mask().sum() == 81


@pytest.mark.parametrize("segmentation", [None, [], {}, "polygon", 3])
def test_annotation_without_segmentation_is_skipped_with_its_id(tmp_path: Path, segmentation: Any) -> None:
    """`null`, `[]` and the like; the image stays."""
    dataset = load_coco(write(tmp_path, [annotation(41, segmentation)]))
    assert len(dataset) == 1
    assert any("skipped" in warning and "41" in warning for warning in dataset.warnings)
    assert not dataset[0].mask().any()


@pytest.mark.parametrize(
    "rings",
    [
        [[1, 2], SQUARE],
        [SQUARE, [1, 2, 3, 4]],
        [[], SQUARE],
        [[*SQUARE[:7]], SQUARE],
        [["a"] * 6, SQUARE],
        [["1", "2", "3", "9", "9", "1"], SQUARE],
        [[True, False, 9, 9, 9, 0], SQUARE],
        [[10**400] * 6, SQUARE],
        [5, SQUARE],
    ],
)
def test_bad_rings_are_dropped_and_counted(tmp_path: Path, rings: Any) -> None:
    """Before or after a valid ring; the valid one and the image are kept."""
    dataset = load_coco(write(tmp_path, [annotation(41, rings)]))
    assert dataset[0].mask().sum() == 81
    assert said(dataset, "rings of fewer than 3 points").startswith("1 annotations")
    assert "41" in said(dataset, "rings of fewer than 3 points")


def test_only_bad_rings_keep_the_image(tmp_path: Path) -> None:
    dataset = load_coco(write(tmp_path, [annotation(41, [[1, 2, 3, 4]])]))
    assert len(dataset) == 1
    assert "41" in said(dataset, "no usable segmentation")
    assert not dataset[0].mask().any()


@pytest.mark.parametrize("far", [100.0, 1e4, 2e8, 1e300])
def test_distant_vertices_are_clipped_geometrically(tmp_path: Path, far: float) -> None:
    """A rectangle that reaches far out on three sides, whatever the distance."""
    dataset = load_coco(write(tmp_path, [annotation(41, [rectangle(-far, -far, 10, far)])]))
    assert "41" in said(dataset, "clipped")
    mask = dataset[0].mask()
    assert mask[:, :10].all()
    assert not mask[:, 10:].any()


def test_distant_slanted_edge_keeps_its_place(tmp_path: Path) -> None:
    """Clamping coordinates instead of clipping would turn this edge."""
    mask = mask_of(tmp_path, [[-2e8, -2e8, 2e8, 2e8, -2e8, 2e8]])  # everything below the diagonal
    rows, columns = np.indices(mask.shape)
    assert mask[rows > columns + 1].all()
    assert not mask[rows < columns - 1].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_vertices_that_are_not_finite_are_dropped(tmp_path: Path, bad: float | None) -> None:
    dataset = load_coco(write(tmp_path, [annotation(41, [[*SQUARE, bad, 4]])]))
    assert "41" in said(dataset, "finite")
    assert dataset[0].mask().sum() == 81


def test_polygon_outside_is_skipped_with_its_id(tmp_path: Path) -> None:
    dataset = load_coco(write(tmp_path, [annotation(41, [rectangle(-90, -90, -50, -50)])]))
    assert "41" in said(dataset, "nothing inside the image")
    assert not dataset[0].mask().any()


def test_overshoot_of_a_rounding_is_not_reported(tmp_path: Path) -> None:
    dataset = load_coco(write(tmp_path, [annotation(1, [rectangle(-0.4, -0.4, WIDTH + 0.4, HEIGHT + 0.4)])]))
    assert dataset.warnings == []
    assert dataset[0].mask().all()


# Overlap, holes, crowds


def test_rings_of_one_annotation_are_united(tmp_path: Path) -> None:
    """Outer + inner ring; COCO polygons can't say that the inner one is a hole."""
    mask = mask_of(tmp_path, [rectangle(0, 0, 12, 12), rectangle(4, 4, 8, 8)])
    assert mask[:12, :12].all()
    assert mask.sum() == 144


def test_rle_expresses_holes(tmp_path: Path) -> None:
    ring = np.zeros((HEIGHT, WIDTH), np.uint8)
    ring[:12, :12] = 1
    ring[4:8, 4:8] = 0
    counts = coco_mask.encode(np.asfortranarray(ring))["counts"].decode()
    mask = mask_of(tmp_path, {"size": [HEIGHT, WIDTH], "counts": counts})
    np.testing.assert_array_equal(mask, ring)


def test_smaller_annotation_is_on_top_in_both_orders(tmp_path: Path) -> None:
    """Overlapping classes in both listing orders."""
    head = annotation(1, [rectangle(0, 0, 16, 16)], category=1)
    hat = annotation(2, [rectangle(2, 2, 8, 6)], category=2)
    forward = load_coco(write(tmp_path / "f", [head, hat]))[0].mask()
    backward = load_coco(write(tmp_path / "b", [hat, head]))[0].mask()
    np.testing.assert_array_equal(forward, backward)
    assert (forward[2:6, 2:8] == 2).all()
    assert np.bincount(forward.ravel()).tolist() == [HEIGHT * WIDTH - 256, 256 - 24, 24]


def test_overlap_never_depends_on_listing_order(tmp_path: Path) -> None:
    """Equal sizes too; ties go to the higher annotation id."""
    boxes = [(0, 0, 8, 8), (4, 4, 12, 12), (6, 0, 14, 8), (2, 2, 4, 4)]
    annotations = [annotation(key, [rectangle(*box)], category=1 + key % 2) for key, box in enumerate(boxes)]
    expected = load_coco(write(tmp_path, annotations))[0].mask()
    assert expected[5, 7] == 1  # boxes 0, 1 and 2 are of one size; 2 has the highest id
    generator = random.Random(0)
    for _ in range(6):
        generator.shuffle(annotations)
        np.testing.assert_array_equal(load_coco(write(tmp_path, annotations))[0].mask(), expected)


def test_crowd_becomes_ignore_beneath_objects(tmp_path: Path) -> None:
    """`iscrowd: 1`."""
    crowd = np.zeros((HEIGHT, WIDTH), np.uint8)
    crowd[:, :10] = 1
    counts = coco_mask.encode(np.asfortranarray(crowd))["counts"].decode()
    dataset = load_coco(
        write(
            tmp_path,
            [
                annotation(3, [rectangle(5, 5, 15, 15)]),
                annotation(41, {"size": [HEIGHT, WIDTH], "counts": counts}, iscrowd=1),
            ],
        )
    )
    assert dataset.ignore == 255
    assert 255 not in dataset.classes
    assert "41" in said(dataset, "crowd regions become ignore id 255")
    mask = dataset[0].mask()
    assert (mask[5:15, 5:15] == 1).all()
    assert (mask[:, :5] == 255).all()
    assert (mask == 255).sum() == 200 - 50


@pytest.mark.parametrize("crowd", ["0", "1", "", 2, -1, 0.0, None, [], float("nan")])
def test_crowd_mark_that_is_neither_0_nor_1(tmp_path: Path, crowd: Any) -> None:
    """A "0" is true in Python: the object would leave the figures without a word."""
    message = error_of(write(tmp_path, [annotation(41, [SQUARE], iscrowd=crowd)]))
    assert "annotation 41 has iscrowd" in message


@pytest.mark.parametrize(("crowd", "expected"), [(0, 1), (False, 1), (1, 255), (True, 255)])
def test_crowd_mark_as_number_or_truth_value(tmp_path: Path, crowd: Any, expected: int) -> None:
    mask = load_coco(write(tmp_path, [annotation(41, [SQUARE], iscrowd=crowd)]))[0].mask()
    assert np.unique(mask).tolist() == [0, expected]


def test_ignore_id_gives_way_to_a_category_255(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            annotation(1, [SQUARE], category=255),
            annotation(2, [rectangle(10, 10, 15, 15)], category=255, iscrowd=1),
        ],
        categories=[{"id": 255, "name": "head"}],
    )
    dataset = load_coco(path)
    assert dataset.ignore == 256
    mask = dataset[0].mask()
    assert mask.dtype == np.uint16
    assert np.unique(mask).tolist() == [0, 255, 256]


# Classes


def test_ids_are_kept_and_background_is_added(tmp_path: Path) -> None:
    """Sparse ids stay what they are."""
    path = write(
        tmp_path,
        [annotation(1, [SQUARE], category=90), annotation(2, [rectangle(10, 10, 15, 15)], category=1000)],
        categories=[{"id": 1000, "name": "hat"}, {"id": 90, "name": "head"}],
    )
    dataset = load_coco(path)
    assert dataset.classes == {0: "background", 90: "head", 1000: "hat"}
    assert dataset.ignore is None
    assert np.unique(dataset[0].mask()).tolist() == [0, 90, 1000]


@pytest.mark.parametrize("name", ["background", "Background", "_background_"])
def test_category_0_named_background_is_it(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, [annotation(1, [SQUARE])], categories=[{"id": 0, "name": name}, CATEGORIES[0]])
    assert load_coco(path).classes == {0: name, 1: "head"}


def test_heading_category_of_roboflow_is_dropped(tmp_path: Path) -> None:
    categories = [
        {"id": 0, "name": "heads", "supercategory": "none"},
        {"id": 1, "name": "head", "supercategory": "heads"},
    ]
    dataset = load_coco(write(tmp_path, [annotation(1, [SQUARE])], categories=categories))
    assert dataset.classes == {0: "background", 1: "head"}
    assert "heads" in said(dataset, "heading")


def test_real_category_0_moves_background_to_the_smallest_free_id(tmp_path: Path) -> None:
    categories = [{"id": 0, "name": "head"}, {"id": 1, "name": "hat"}, {"id": 5, "name": "hair"}]
    dataset = load_coco(write(tmp_path, [annotation(1, [SQUARE], category=0)], categories=categories))
    assert dataset.classes == {0: "head", 1: "hat", 2: "background", 5: "hair"}
    assert said(dataset, "category 0 is 'head'")
    mask = dataset[0].mask()
    assert (mask == 0).sum() == 81
    assert (mask == 2).sum() == HEIGHT * WIDTH - 81


def test_real_category_0_without_annotations_stays_a_class(tmp_path: Path) -> None:
    """The classes of a split must not depend on which of them occur in it."""
    categories = [{"id": 0, "name": "head"}, {"id": 1, "name": "hat"}]
    dataset = load_coco(write(tmp_path, [annotation(1, [SQUARE], category=1)], categories=categories))
    assert dataset.classes == {0: "head", 1: "hat", 2: "background"}


@pytest.mark.parametrize(
    ("categories", "expected"),
    [
        ([{"id": 1, "name": "head"}, {"id": 4, "name": "head"}], ("1", "4", "'head'")),
        ([{"id": 1, "name": "head"}, {"id": 3, "name": "Background"}], ("0", "3", "'background'")),
        ([{"id": 1, "name": "head"}, {"id": 1, "name": "hat"}], ("1", "twice")),
        ([{"id": 1}], ("category", "name")),
        ([{"id": "1", "name": "head"}], ("category", "id")),
        ([{"id": -3, "name": "head"}], ("-3", "id")),
        ([{"id": [1], "name": "head"}], ("category", "id")),
        ([{"id": 1.0, "name": "head"}], ("category", "id")),
        ([{"id": float("nan"), "name": "head"}], ("category", "id")),
        ([{"id": 2**31 - 1, "name": "head"}], ("category", "2147483646")),
        ([{"id": 1, "name": ["head"]}], ("category", "name")),
        ([{"id": 1, "name": "\ud800"}], ("category", "\\ud800")),
        ([{"id": 1, "name": "he\x1bad"}], ("category", "name")),
        ([], ("lists no categories",)),
    ],
)
def test_classes_that_clash_are_named(
    tmp_path: Path, categories: list[dict[str, Any]], expected: tuple[str, ...]
) -> None:
    """Class names that clash, and ids and names that are none: one line with the ids."""
    message = error_of(write(tmp_path, [], categories=categories))
    assert all(part in message for part in expected), message


@pytest.mark.parametrize("category", [9, "1", [1], {"id": 1}, 1.0, True, None, 10**400])
def test_annotation_of_unknown_category_is_named(tmp_path: Path, category: Any) -> None:
    message = error_of(write(tmp_path, [annotation(41, [SQUARE], category=category)]))
    assert "annotation 41" in message
    assert brief(category) in message


@pytest.mark.parametrize("image_id", [99, "7", [7], {"id": 7}, 7.0, None])
def test_annotation_of_unknown_image_is_skipped_with_its_id(tmp_path: Path, image_id: Any) -> None:
    dataset = load_coco(write(tmp_path, [annotation(41, [SQUARE]) | {"image_id": image_id}]))
    assert "41" in said(dataset, "image_id")
    assert not dataset[0].mask().any()


@pytest.mark.parametrize("key", [None, -1, "41", 4.1, True, [41]])
def test_annotation_without_an_id_is_quoted(tmp_path: Path, key: Any) -> None:
    message = error_of(write(tmp_path, [annotation(key, [SQUARE])]))
    assert "needs an id" in message
    assert brief(key) in message


# Files


def test_file_without_images(tmp_path: Path) -> None:
    """A COCO file without images: one line saying what and where."""
    path = write(tmp_path, [], images=[])
    assert str(path) in error_of(path)
    assert "lists no images" in error_of(path)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"images": 3}', '{"images": [1], "annotations": []}', DEEP]
)
def test_json_of_another_kind(tmp_path: Path, text: str) -> None:
    path = tmp_path / "_annotations.coco.json"
    path.write_text(text)
    assert str(path) in error_of(path)


def test_truncated_and_binary_json(tmp_path: Path) -> None:
    path = write(tmp_path, [annotation(1, [SQUARE])])
    path.write_bytes(path.read_bytes()[:-30])
    assert "can't be read as JSON" in error_of(path)
    path.write_bytes(b"\x89PNG\r\n\xff\xfe")
    assert "not UTF-8" in error_of(path)
    path.unlink()
    assert str(path) in error_of(path)


def test_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path, [annotation(1, [SQUARE])])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_coco(path)[0].mask().sum() == 81
    path.write_bytes(path.read_text(encoding="utf-8-sig").encode("utf-16"))
    assert "not UTF-8" in error_of(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path / "valid", [])
    (tmp_path / "valid" / "a.png").unlink()
    os.mkfifo(tmp_path / "valid" / "a.png")
    assert "none of its 1 images" in error_of(path)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in error_of(path)
    with pytest.raises(InputError, match="not a regular file"):
        open_dataset(tmp_path)


def test_missing_images_are_skipped_and_named(tmp_path: Path) -> None:
    image = {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}
    images = [image, image | {"id": 8, "file_name": "gone.png"}]
    dataset = load_coco(write(tmp_path, [annotation(1, [SQUARE])], images=images))
    assert [sample.name for sample in dataset] == ["a.png"]
    assert said(dataset, "gone.png").startswith("1 images")


def test_no_image_found_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [annotation(1, [SQUARE])])
    (tmp_path / "a.png").unlink()
    assert "none of its 1 images" in error_of(path)


def test_size_that_differs_from_the_file(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "a.png", "width": 31, "height": 20}]
    message = error_of(write(tmp_path, [], images=images))
    assert "a.png is 30x20 pixels but 31x20 in _annotations.coco.json" in message


def test_size_swapped_by_exif_is_explained(tmp_path: Path) -> None:
    path = write(tmp_path, [], images=[{"id": 7, "file_name": "a.jpg", "width": HEIGHT, "height": WIDTH}])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.jpg", exif=exif)
    assert "EXIF orientation" in error_of(path)


def test_image_that_is_no_image(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    (tmp_path / "a.png").write_bytes(b"no picture")
    assert "a.png" in error_of(path)


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": "7"},
        {"id": 7.0},
        {"id": float("nan")},
        {"id": [7]},
        {"id": 10**400},
        {"file_name": ""},
        {"file_name": 3},
        {"file_name": ["a.png"]},
        {"file_name": "\ud800.png"},
        {"file_name": "a\n.png"},
        {"file_name": "a" * 5000},
        {"width": 0},
        {"width": 10**400},
        {"width": 30.0},
        {"height": "20"},
        {"height": {}},
        {"width": None},
    ],
)
def test_image_entries_that_lack_something(tmp_path: Path, change: dict[str, Any]) -> None:
    image = {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT} | change
    message = error_of(write(tmp_path, [annotation(1, [SQUARE])], images=[image]))
    assert "_annotations.coco.json: image " in message
    assert len(message) < 500 + len(str(tmp_path))


def test_image_listed_twice(tmp_path: Path) -> None:
    image = {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}
    assert "twice" in error_of(write(tmp_path, [], images=[image, image | {"id": 8}]))


def test_images_in_another_folder_and_subfolders(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "sub\\a.png", "width": WIDTH, "height": HEIGHT}]
    path = write(tmp_path / "labels", [annotation(1, [SQUARE])], images=images)
    (tmp_path / "pictures" / "sub").mkdir(parents=True)
    (tmp_path / "labels" / "a.png").rename(tmp_path / "pictures" / "sub" / "a.png")
    sample = load_coco(path, images_dir=tmp_path / "pictures")[0]
    assert sample.name == "sub/a.png"
    assert sample.rgb().shape == (HEIGHT, WIDTH, 3)
    assert sample.rgb()[0, 0].tolist() == [10, 20, 30]


def test_image_cut_short_is_named_when_read(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    noise = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:400])
    with pytest.raises(InputError, match=r"a\.png"):
        load_coco(path)[0].rgb()


def test_grey_16_bit_image_is_scaled_not_clipped(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    Image.fromarray(np.full((HEIGHT, WIDTH), 0x8000, np.uint16)).save(tmp_path / "a.png")
    assert np.unique(load_coco(path)[0].rgb()).tolist() == [0x80]


# Opening by root and split


def test_open_dataset_finds_coco(tmp_path: Path) -> None:
    write(tmp_path / "valid", [annotation(1, [SQUARE])])
    dataset = open_dataset(tmp_path)
    assert len(dataset) == 1
    assert [sample.size for sample in dataset] == [(HEIGHT, WIDTH)]


def test_open_dataset_says_what_it_missed(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match=r"no split 'valid'.*train"):
        open_dataset(tmp_path)
    with pytest.raises(InputError, match="neither"):
        open_dataset(tmp_path, "train")
    with pytest.raises(InputError, match="not a folder"):
        open_dataset(tmp_path / "nowhere")
    write(tmp_path / "train", [])
    (tmp_path / "train" / "masks").mkdir()
    with pytest.raises(InputError, match="both"):
        open_dataset(tmp_path, "train")


def test_digest_follows_labels_and_images(tmp_path: Path) -> None:
    annotations = [annotation(1, [SQUARE])]
    digest = load_coco(write(tmp_path / "one", annotations)).digest()
    assert load_coco(write(tmp_path / "two", annotations)).digest() == digest
    moved = copy.deepcopy(annotations)
    moved[0]["segmentation"][0][0] = 1
    assert load_coco(write(tmp_path / "two", moved)).digest() != digest
    path = write(tmp_path / "two", annotations)
    Image.new("RGB", (WIDTH, HEIGHT), (10, 20, 31)).save(tmp_path / "two" / "a.png")
    assert load_coco(path).digest() != digest
