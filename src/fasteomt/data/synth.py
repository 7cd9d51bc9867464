"""Writes generated data as `OUT/{train,valid}/*.jpg` with `_annotations.coco.json` beside the images."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fasteomt.data.photos import Split, load_photo, photo_names
from fasteomt.data.rasterize import Shape, decode_shape
from fasteomt.data.scenes import generate
from fasteomt.errors import InputError, need

VERSION = 1
ANNOTATIONS = "_annotations.coco.json"
PROVENANCE = "dataset.json"
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
        train, valid: images of each split.
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
    if min(size) < 64 or max(size) > 8192:
        raise InputError(f"size {size[0]}x{size[1]}: sides must be 64 to 8192 pixels")
    need("pycocotools.mask", extra="data")
    counts: dict[Split, int] = {"train": train, "valid": valid}
    for split in counts:
        for name in photo_names(split):
            load_photo(name)
    with _replaced_folder(out, overwrite) as folder:
        done = 0
        for split, count in counts.items():
            (folder / split).mkdir()
            records = []
            for record in _map(functools.partial(_write_one, folder, seed, split, size), count, workers):
                records.append(record)
                done += 1
                if progress is not None:
                    progress(done, train + valid)
            (folder / split / ANNOTATIONS).write_text(json.dumps(_coco(split, records)))
        facts = {
            "generator": "fasteomt data synth",
            "version": VERSION,
            "seed": seed,
            "size": list(size),
            "counts": counts,
            "photos": {split: photo_names(split) for split in counts},
        }
        (folder / PROVENANCE).write_text(json.dumps(facts, indent=1) + "\n")
    return out


@contextmanager
def _replaced_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary sibling of `out` that takes its place when the block ends without an error."""
    if out.exists() or out.is_symlink():
        if not out.is_dir():
            raise InputError(f"{out}: exists and is not a folder: choose another name")
        inside = {path.name for path in out.iterdir()}
        if inside - {"train", "valid", PROVENANCE} or (inside and PROVENANCE not in inside):
            raise InputError(f"{out}: holds files that are not a generated data set: choose another folder")
        if inside and not overwrite:
            raise InputError(f"{out}: not empty: choose another folder or pass --overwrite")
    temporary, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if out.exists():
            os.replace(out, old)
        os.replace(temporary, out)
    except OSError as error:
        raise InputError(f"{out}: can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _map(work: Callable[[int], Any], count: int, workers: int) -> Iterator[Any]:
    if workers == 1 or count <= 1:
        yield from map(work, range(count))
        return
    # Spawned, not forked: the parent may hold threads (torch, OpenCV) that a fork would break.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, count), mp_context=context, initializer=cv2.setNumThreads, initargs=(1,)
    )
    try:
        yield from pool.map(work, range(count), chunksize=min(8, -(-count // workers)))
    finally:
        pool.shutdown(cancel_futures=True)


def _write_one(folder: Path, seed: int, split: Split, size: tuple[int, int], index: int) -> dict[str, Any]:
    """Generate and store one image; returns its entry: name, width, height and objects."""
    sample = generate(seed, split, index, *size)
    height, width = sample.image.shape[:2]
    name = f"{split}_{index:05d}.jpg"
    _, data = cv2.imencode(".jpg", sample.image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, sample.quality])
    (folder / split / name).write_bytes(data.tobytes())
    objects = []
    for polygons in sample.heads:
        shape = Shape(0, 1, False, tuple(np.reshape(ring, (-1, 2)) for ring in polygons))
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
