"""Writes generated data as `OUT/{train,valid}/*.jpg` with `_annotations.coco.json` beside the images."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fasteomt.data.photos import Split, load_photo, photo_names
from fasteomt.data.processes import map_in_processes
from fasteomt.data.rasterize import decode_shape
from fasteomt.data.scenes import encode, generate, shapes_of
from fasteomt.errors import InputError, need
from fasteomt.files import atomic_folder

VERSION = 2
ANNOTATIONS = "_annotations.coco.json"
PROVENANCE = "dataset.json"
GENERATOR = "fasteomt data synth"
MAX_IMAGES = 1_000_000  # of a split; what is known of each is kept until its file is written
Progress = Callable[[int, int], None]


def write_dataset(
    out: str | Path,
    *,
    train: int = 3672,
    valid: int = 477,
    size: tuple[int, int] = (640, 480),
    seed: int = 0,
    workers: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Generate a data set; `out` appears when it is complete, never half written.

    Args:
        train, valid: images of each split, at most `MAX_IMAGES`.
        size: width and height in pixels whose area every frame has (shapes: `scenes.ASPECTS`).
        workers: processes; the result doesn't depend on it.
        overwrite: replace an earlier data set in `out`. A folder that holds anything else is never replaced.
        progress: called with (images done, images in all).

    Returns:
        `out` as a Path.

    Raises:
        InputError: bad counts or size, or `out` is in the way or can't be written.
        UnsupportedError: pycocotools or the photos' packages are missing.
    """
    out = Path(out)
    if min(train, valid) < 0 or train + valid == 0 or seed < 0 or workers < 1:
        raise InputError(f"train {train}, valid {valid}, seed {seed}, workers {workers}: too small")
    if max(train, valid) > MAX_IMAGES:
        raise InputError(f"train {train}, valid {valid}: at most {MAX_IMAGES} images each")
    if min(size) < 64 or max(size) > 8192:
        raise InputError(f"size {size[0]}x{size[1]}: sides must be 64 to 8192 pixels")
    _check_replaceable(out, overwrite)
    need("pycocotools.mask", extra="data")
    counts: dict[Split, int] = {"train": train, "valid": valid}
    for split in counts:
        for name in photo_names(split):
            load_photo(name)
    with atomic_folder(out) as folder:
        done = 0
        for split, count in counts.items():
            (folder / split).mkdir()
            records = []
            write_one = functools.partial(_write_one, folder, seed, split, size)
            for record in map_in_processes(write_one, range(count), workers):
                records.append(record)
                done += 1
                if progress is not None:
                    progress(done, train + valid)
            (folder / split / ANNOTATIONS).write_text(json.dumps(_coco(split, records)))
        facts = {
            "generator": GENERATOR,
            "version": VERSION,
            "seed": seed,
            "size": list(size),
            "counts": counts,
            "photos": {split: photo_names(split) for split in counts},
        }
        (folder / PROVENANCE).write_text(json.dumps(facts, indent=1) + "\n")
    return out


def _check_replaceable(out: Path, overwrite: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise InputError(f"{out}: exists and is not a folder: choose another name")
    if not any(out.iterdir()):
        return
    stranger = _stranger(out)
    if stranger is not None:
        raise InputError(f"{out}: not a generated data set ({stranger.name}): choose another folder")
    if not overwrite:
        raise InputError(f"{out}: not empty: choose another folder or pass --overwrite")


def _stranger(out: Path) -> Path | None:
    """Something in a folder that `write_dataset` did not put there, or None."""
    provenance = out / PROVENANCE
    try:
        generator = json.loads(provenance.read_bytes()).get("generator")
    except (OSError, ValueError, AttributeError, RecursionError):
        generator = None
    if generator != GENERATOR:
        return provenance
    for path in (*out.iterdir(), *out.glob("*/*")):
        place = path.relative_to(out).parts
        if place in ((PROVENANCE,), ("train",), ("valid",)) and not path.is_symlink():
            continue
        made = place[-1] == ANNOTATIONS or re.fullmatch(rf"{place[0]}_\d{{5,}}\.jpg", place[-1])
        if len(place) != 2 or not made or not path.is_file():
            return path
    return None


def _write_one(folder: Path, seed: int, split: Split, size: tuple[int, int], index: int) -> dict[str, Any]:
    """Generate and store one image; returns its entry: name, width, height and objects."""
    sample = generate(seed, split, index, *size)
    height, width = sample.image.shape[:2]
    name = f"{split}_{index:05d}.jpg"
    (folder / split / name).write_bytes(encode(sample))
    objects = []
    for polygons, shape in zip(sample.heads, shapes_of(sample), strict=True):
        rows, columns = np.nonzero(decode_shape(shape, height, width))
        if rows.size:
            x, y = int(columns.min()), int(rows.min())
            box = [x, y, int(columns.max()) - x + 1, int(rows.max()) - y + 1]
            objects.append({"segmentation": polygons, "area": int(rows.size), "bbox": box})
    return {"file_name": name, "width": width, "height": height, "objects": objects}


def _coco(split: Split, records: list[dict[str, Any]]) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, record in enumerate(records, start=1):
        objects = record.pop("objects")
        images.append({"id": image_id, **record})
        for fields in objects:
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image_id, "category_id": 1, "iscrowd": 0, **fields}
            )
    return {
        "info": {"description": f"fasteomt generated heads, {split}", "version": str(VERSION)},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "head", "supercategory": "none"}],
    }
