"""COCO instance annotations -> semantic masks. These are the rules, the same for training and evaluation.

**Classes.** Category ids stay as they are. Pixels that no annotation covers are class 0, "background", added
when there is no category 0. Where there is one:

- named "background" (any case, underscores around it allowed): it is the background;
- a mere heading, as Roboflow writes it (no supercategory of its own, the supercategory of another category,
  no annotations): dropped, and 0 is the background;
- anything else is a class, and background gets the smallest id that no category has.

Names must differ, and no category but the background may be called "background".

**Shapes.** Polygons follow pycocotools' raster rule (`rasterize.py`). Rings of one annotation are united:
COCO polygons can't tell a hole from a part, so an inner ring is filled; run lengths (compressed or not)
do express holes. Rings of fewer than six numbers, or of anything but numbers, are dropped. Vertices that
aren't finite are dropped; distant ones are clipped geometrically.

**Overlap.** Larger annotations (in pixels) are painted first, smaller ones over them; equal ones by
annotation id, the higher on top. The order in the file never matters.

**Crowds.** `iscrowd: 1` outlines a group whose members are not told apart, often loosely. Its pixels become
`ignore` (255, or the smallest id above all categories when 255 is one): they count neither for nor
against a model, and LightlyTrain's loss skips them. Objects annotated inside a crowd region still count.
`iscrowd` is 0, 1, false, true or absent; anything else is refused, as "0" would otherwise be a crowd.

**What is dropped or changed** is listed in `SegmentationSet.warnings`, with annotation ids or file names.
An image without usable annotations stays, as background.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import partial
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any

import numpy as np

from fasteomt.data.dataset import Sample, SegmentationSet, check_size
from fasteomt.data.fields import MAX_CLASS_ID, is_id, is_name, read_json
from fasteomt.data.rasterize import Shape, clip_ring, decode_runs, paint
from fasteomt.errors import InputError, brief
from fasteomt.ids import id_dtype
from fasteomt.images import image_size

COCO_JSON = "_annotations.coco.json"
BACKGROUND = "background"
IGNORE = 255
_MAX_SIDE = 2**31 - 1  # pixels; what a PNG can say of itself

_CLIPPED = "vertices outside the image: clipped"
_NOT_FINITE = "vertices that aren't finite numbers: those vertices dropped"
_BAD_RINGS = "rings of fewer than 3 points or not of numbers: those rings dropped"
_NO_SHAPE = "no usable segmentation: skipped"
_BAD_RUNS = "run lengths that don't fit the image: skipped"
_OUTSIDE = "nothing inside the image: skipped"
_NO_IMAGE = "an image_id that isn't listed: skipped"


def load_coco(json_path: str | Path, images_dir: str | Path | None = None) -> SegmentationSet:
    """Read a COCO file by the rules above. Images are looked for in `images_dir`, or beside the file.

    Raises:
        InputError: not a COCO file, no images, clashing classes, or an image of another size than stated.
    """
    json_path = Path(json_path)
    images_dir = json_path.parent if images_dir is None else Path(images_dir)
    coco = _read_coco(json_path)
    classes, background, warnings = _classes(coco, json_path)
    crowd = any(annotation.get("iscrowd") for annotation in coco["annotations"])
    ignore = _ignore_id(classes) if crowd else None
    dtype = id_dtype([*classes, *([] if ignore is None else [ignore])])

    images, missing = _images(coco, json_path, images_dir)
    shapes, problems = _shapes(coco, images)
    if missing:
        warnings.append(f"{len(missing)} images are not in {images_dir}: skipped ({_some(missing)})")
    for problem, ids in problems.items():
        warnings.append(f"{len(ids)} annotations with {problem} (annotation ids {_some(ids)})")
    ids = [shape.annotation for of_image in shapes.values() for shape in of_image if shape.crowd]
    if ids:
        warnings.append(f"{len(ids)} crowd regions become ignore id {ignore} (annotation ids {_some(ids)})")

    samples = []
    for image_id, (name, path, size) in images.items():
        if path is None:
            continue
        check_size(path, image_size(path), size, json_path.name)
        read_mask = partial(paint, shapes[image_id], *size, background, ignore, dtype)
        samples.append(Sample(name, path, size, read_mask))
    if not samples:
        raise InputError(f"{json_path}: none of its {len(images)} images is in {images_dir}: put them there")
    return SegmentationSet(images_dir, classes, tuple(samples), ignore, warnings, (json_path,))


def _read_coco(path: Path) -> dict[str, Any]:
    coco = read_json(path, "export it again")
    for key in ("images", "annotations", "categories"):
        entries = coco.get(key) if isinstance(coco, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{path} is not a COCO file: it has no list '{key}' of objects")
    for key in ("images", "categories"):
        if not coco[key]:
            raise InputError(f"{path} lists no {key}: export it again with them")
    return coco


def _classes(coco: dict[str, Any], path: Path) -> tuple[dict[int, str], int, list[str]]:
    """Classes by id, the background's id, and what there is to say about them."""
    categories: dict[int, dict[str, Any]] = {}
    for category in coco["categories"]:
        key, name = category.get("id"), category.get("name")
        if not is_id(key, MAX_CLASS_ID) or not is_name(name):
            raise InputError(
                f"{path}: category {brief(category)} needs an id of 0 to {MAX_CLASS_ID} and a printable name"
            )
        if key in categories:
            raise InputError(f"{path}: category id {key} is listed twice: give each category its own id")
        categories[key] = category
    _check_annotations(coco, path, categories.keys())

    warnings = []
    if 0 in categories and _is_heading(coco, categories):
        heading = categories.pop(0)["name"]
        warnings.append(f"category 0 '{heading}' is a heading without annotations: dropped, 0 is background")
    classes = {key: categories[key]["name"].strip() for key in sorted(categories)}
    background = 0
    if 0 not in classes:
        classes = {0: BACKGROUND, **classes}
    elif not _means_background(classes[0]):
        background = next(key for key in range(len(classes) + 1) if key not in classes)
        warnings.append(f"category 0 is '{classes[0]}': uncovered pixels become class {background}")
        classes = dict(sorted({**classes, background: BACKGROUND}.items()))

    first: dict[str, int] = {}
    for key, name in classes.items():
        name = BACKGROUND if _means_background(name) else name
        if name in first:
            raise InputError(
                f"{path}: classes {first[name]} and {key} are both called '{name}'"
                + (f" (uncovered pixels are class {background})" if name == BACKGROUND else "")
                + ": give each class its own name"
            )
        first[name] = key
    return classes, background, warnings


def _check_annotations(coco: dict[str, Any], path: Path, categories: Collection[int]) -> None:
    """Refuse annotations whose id, category or crowd mark can't be what it says; shapes are for later."""
    for annotation in coco["annotations"]:
        key, category = annotation.get("id"), annotation.get("category_id")
        crowd = annotation.get("iscrowd", 0)
        if not is_id(key):
            raise InputError(f"{path}: annotation {brief(annotation)} needs an id of 0 or more")
        if not is_id(category) or category not in categories:
            raise InputError(
                f"{path}: annotation {key} has category_id {brief(category)}, "
                "which is not among the categories: add it or remove the annotation"
            )
        if not isinstance(crowd, int) or crowd not in (0, 1):
            raise InputError(f"{path}: annotation {key} has iscrowd {brief(crowd)}: write 0 or 1")


def _is_heading(coco: dict[str, Any], categories: dict[int, dict[str, Any]]) -> bool:
    top = categories[0]
    return (
        top.get("supercategory") in (None, "", "none")
        and any(key != 0 and c.get("supercategory") == top["name"] for key, c in categories.items())
        and not any(annotation["category_id"] == 0 for annotation in coco["annotations"])
    )


def _means_background(name: str) -> bool:
    return name.strip("_ ").lower() == BACKGROUND


def _ignore_id(classes: dict[int, str]) -> int:
    return IGNORE if IGNORE not in classes else max(classes) + 1


_Image = tuple[str, Path | None, tuple[int, int]]


def _images(coco: dict[str, Any], path: Path, images_dir: Path) -> tuple[dict[int, _Image], list[str]]:
    """Images by id as (name, path or None when missing, (height, width)), and the names of missing ones."""
    images: dict[int, _Image] = {}
    missing = []
    names: set[str] = set()
    for image in coco["images"]:
        key, file_name = image.get("id"), image.get("file_name")
        size = (image.get("height"), image.get("width"))
        if not is_id(key) or not is_name(file_name):
            raise InputError(
                f"{path}: image {brief(image)} needs an id of 0 or more and a printable file_name"
            )
        if not all(is_id(side, _MAX_SIDE) and side > 0 for side in size):
            raise InputError(f"{path}: image {key} ({brief(file_name)}) has no valid width and height")
        file_name = file_name.replace("\\", "/")  # as written on Windows
        name = "/".join(part for part in PurePosixPath(file_name).parts if part not in ("/", ".."))
        if key in images or name in names:
            raise InputError(
                f"{path}: image {key} ({brief(file_name)}) is listed twice: remove one of the two"
            )
        names.add(name)
        file = images_dir / file_name
        try:
            found = file.is_file()
        except OSError as error:  # such as a name that is too long
            raise InputError(
                f"{path}: image {key} ({brief(file_name)}) can't be looked up ({error.strerror}): rename it"
            ) from None
        if not found:
            missing.append(file_name)
        images[key] = (name, file if found else None, size)
    return images, missing


def _shapes(
    coco: dict[str, Any], images: dict[int, _Image]
) -> tuple[dict[int, list[Shape]], dict[str, list[int]]]:
    """Usable shapes by image id; and, by kind of problem, the ids of the annotations that have it."""
    shapes: dict[int, list[Shape]] = defaultdict(list)
    problems: dict[str, list[int]] = defaultdict(list)
    for annotation in coco["annotations"]:
        key, image_id = annotation["id"], annotation.get("image_id")
        if not is_id(image_id) or image_id not in images:
            problems[_NO_IMAGE].append(key)
            continue
        shape, found = _shape(annotation, *images[image_id][2])
        for problem in found:
            problems[problem].append(key)
        if shape is not None:
            shapes[image_id].append(shape)
    return shapes, problems


def _shape(annotation: dict[str, Any], height: int, width: int) -> tuple[Shape | None, list[str]]:
    """One annotation's shape, or None when nothing of it is usable, and the problems it has."""
    segmentation = annotation.get("segmentation")
    common = (annotation["id"], annotation["category_id"], bool(annotation.get("iscrowd")))
    if isinstance(segmentation, dict):
        counts = segmentation.get("counts")
        if segmentation.get("size") != [height, width] or not isinstance(counts, str | list):
            return None, [_BAD_RUNS]
        runs = decode_runs(counts, height, width)
        return (None, [_BAD_RUNS]) if runs is None else (Shape(*common, runs=runs), [])
    if not isinstance(segmentation, list) or not segmentation:
        return None, [_NO_SHAPE]
    if not any(isinstance(ring, list) for ring in segmentation):
        segmentation = [segmentation]  # a single ring, written without its own brackets

    problems: dict[str, None] = {}  # a set that keeps its order
    rings = []
    outside = False
    for numbers in segmentation:
        ring = _ring(numbers)
        if ring is None:
            problems[_BAD_RINGS] = None
            continue
        finite = np.isfinite(ring).all(axis=1)
        if not finite.all():
            problems[_NOT_FINITE] = None
            ring = ring[finite]
        if len(ring) < 3:
            problems[_BAD_RINGS] = None
            continue
        # Exporters often overshoot by a rounding; only more than a pixel is worth a word.
        low, high = ring.min(axis=0), ring.max(axis=0)
        if (low < -1).any() or high[0] > width + 1 or high[1] > height + 1:
            problems[_CLIPPED] = None
        ring = clip_ring(ring, height, width)
        if len(ring) >= 3 and (high > 0).all() and low[0] < width and low[1] < height:
            rings.append(ring)
        else:
            outside = True
    if rings:
        return Shape(*common, rings=tuple(rings)), list(problems)
    return None, [_OUTSIDE if outside else _NO_SHAPE, *problems]


def _ring(numbers: Any) -> np.ndarray | None:
    """(n, 2) float64 from a flat list [x, y, x, y, ...]; None for anything else or fewer than 3 points."""
    if not isinstance(numbers, list) or len(numbers) < 6 or len(numbers) % 2:
        return None
    # NumPy alone would read "5" and true as numbers too.
    if not set(map(type, numbers)) <= {int, float, NoneType}:
        return None
    try:
        # None becomes NaN, and goes the way of other numbers that aren't finite.
        return np.array(numbers, dtype=np.float64).reshape(-1, 2)
    except OverflowError:
        return None


def _some(items: list[Any], limit: int = 20) -> str:
    return ", ".join(map(str, items[:limit])) + (", ..." if len(items) > limit else "")
