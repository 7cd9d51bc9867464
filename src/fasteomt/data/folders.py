"""PNG-mask folders, read and written.

    ROOT/classes.json            {"0": "background", "1": "head", "ignore": 255}
    ROOT/valid/images/a/b.jpg
    ROOT/valid/masks/a/b.png     one channel, 8 or 16 bits, or a palette: the values are class ids

`classes.json` lies in the root or in the split's folder (which wins). "ignore" is optional: the id of pixels
that count neither for nor against a model. A value that is neither a class nor "ignore" is an error:
it would otherwise be a wrong class without anyone noticing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from fasteomt.data.dataset import Sample, SegmentationSet, check_size
from fasteomt.data.fields import MAX_CLASS_ID, is_id, is_name, read_json
from fasteomt.data.processes import map_in_processes
from fasteomt.errors import InputError, brief
from fasteomt.files import atomic_folder
from fasteomt.ids import id_dtype
from fasteomt.images import image_size, read_image

IMAGES_DIR, MASKS_DIR, CLASSES_JSON = "images", "masks", "classes.json"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
# Fewer masks are painted, at some 2 ms each, before processes have started.
_WORTH_PROCESSES = 2000
_MASK_MODES = ("1", "P", "L", "I", "I;16", "I;16B", "I;16L")


def load_folders(folder: str | Path) -> SegmentationSet:
    """Read one split, `folder/images` and `folder/masks`, by the rules above.

    An image without a mask, or a mask without an image, is skipped with a warning.

    Raises:
        InputError: no classes, no pair of image and mask, or a pair of different sizes.
    """
    folder = Path(folder)
    images_dir, masks_dir = folder / IMAGES_DIR, folder / MASKS_DIR
    candidates = (folder / CLASSES_JSON, folder.parent / CLASSES_JSON)
    classes_file = next((path for path in candidates if path.exists()), None)
    if classes_file is None:
        raise InputError(
            f"{folder.parent / CLASSES_JSON} is missing: write the class names into it, "
            'such as {"0": "background", "1": "head", "ignore": 255}'
        )
    classes, ignore = _read_classes(classes_file)
    if not images_dir.is_dir():
        raise InputError(f"{images_dir} is missing: the images belong there, beside {MASKS_DIR}/")

    pairs: dict[Path, Path] = {}
    unmasked = []
    for image in sorted(p for p in images_dir.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES):
        mask = (masks_dir / image.relative_to(images_dir)).with_suffix(".png")
        if mask in pairs:
            raise InputError(f"{pairs[mask]} and {image} share the mask {mask}: rename one of them")
        if mask.is_file():
            pairs[mask] = image
        else:
            unmasked.append(image)
    if not pairs:
        raise InputError(
            f"{folder} has no image with a mask: {MASKS_DIR}/NAME.png belongs to images/NAME.jpg"
        )
    alone = [p for p in sorted(masks_dir.rglob("*.png")) if p not in pairs]
    warnings = [
        f"{len(files)} {what}: skipped (first: {files[0].relative_to(folder)})"
        for what, files in (("images without a mask", unmasked), ("masks without an image", alone))
        if files
    ]

    samples = []
    for mask, image in pairs.items():
        size = image_size(image)
        check_size(mask, image_size(mask), size, f"its image {image.name}")
        name = image.relative_to(images_dir).as_posix()
        samples.append(Sample(name, image, size, partial(_read_mask, mask, tuple(classes), ignore)))
    return SegmentationSet(folder, classes, tuple(samples), ignore, warnings, (classes_file, *pairs))


def export_masks(dataset: SegmentationSet, out_dir: str | Path, *, workers: int = 1) -> dict[str, str]:
    """Write a data set as a PNG-mask folder, which LightlyTrain trains from.

    Writes `out_dir/{images,masks,classes.json}`: masks as one-channel PNG of 8 bits, 16 when an id needs it
    (no palette: LightlyTrain would read colours), images as symbolic links, or copies where links
    aren't allowed. `out_dir` appears when all is written.

    Args:
        workers: processes that paint masks.

    Returns:
        LightlyTrain's description of the split: its image and mask folders. The ignore id isn't among
        `dataset.classes`, so LightlyTrain leaves its pixels out of the loss.

    Raises:
        InputError: `out_dir` isn't empty or can't be written, two images differ only in their suffix, or ids
            don't fit 16 bits.
    """
    out_dir = Path(out_dir)
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise InputError(f"{out_dir} exists and is not an empty folder: choose another place for the masks")
    stems: dict[str, str] = {}
    for sample in dataset:
        stem = os.path.splitext(sample.name)[0]
        if stem in stems:
            raise InputError(
                f"images {stems[stem]} and {sample.name} differ in their suffix only: rename one, "
                "as they would share one mask"
            )
        stems[stem] = sample.name
    ids = [*dataset.classes, *([] if dataset.ignore is None else [dataset.ignore])]
    dtype = id_dtype(ids)
    if dtype == np.int32:
        raise InputError(f"class ids {min(ids)} to {max(ids)} don't fit a 16-bit PNG: renumber the classes")

    with atomic_folder(out_dir) as temporary:
        for folder in {Path(sample.name).parent for sample in dataset}:
            (temporary / IMAGES_DIR / folder).mkdir(parents=True, exist_ok=True)
            (temporary / MASKS_DIR / folder).mkdir(parents=True, exist_ok=True)
        few = len(dataset) < _WORTH_PROCESSES
        export = partial(_export, temporary, dtype)
        deque(map_in_processes(export, dataset.samples, 1 if few else workers), maxlen=0)
        text = {str(key): name for key, name in dataset.classes.items()}
        extra = {} if dataset.ignore is None else {"ignore": dataset.ignore}
        (temporary / CLASSES_JSON).write_text(json.dumps({**text, **extra}, indent=1), encoding="utf-8")
    return {"images": str(out_dir / IMAGES_DIR), "masks": str(out_dir / MASKS_DIR)}


def _export(folder: Path, dtype: np.dtype, sample: Sample) -> None:
    """Write one image and its mask."""
    mask = (folder / MASKS_DIR / sample.name).with_suffix(".png")
    # Little compression: it takes longer than the painting, and masks shrink anyway.
    Image.fromarray(sample.mask().astype(dtype)).save(mask, compress_level=1)
    image = folder / IMAGES_DIR / sample.name
    try:
        image.symlink_to(sample.image_path.resolve())
    except OSError:
        shutil.copyfile(sample.image_path, image)


def _read_classes(path: Path) -> tuple[dict[int, str], int | None]:
    example = 'expected {"0": "background", "1": "head", "ignore": 255}'
    raw = read_json(path, example, pairs_hook=list)
    if not isinstance(raw, list) or not all(isinstance(entry, tuple) for entry in raw):
        raise InputError(f"{path} is not a JSON object: {example}")
    classes: dict[int, str] = {}
    ignore = None
    for key, value in raw:
        class_id = _class_id(key)
        if key == "ignore" and is_id(value, MAX_CLASS_ID):
            ignore = value
        elif class_id is not None and is_name(value):
            if class_id in classes:
                raise InputError(f"{path}: class id {class_id} is listed twice: give each class its own id")
            classes[class_id] = value.strip()
        else:
            raise InputError(f"{path}: entry {brief(key)}: {brief(value)} is unclear: {example}")
    first: dict[str, int] = {}
    for class_id, name in classes.items():
        other = first.setdefault(name, class_id)
        if other != class_id:
            raise InputError(f"{path}: classes {other} and {class_id} are both called '{name}': rename one")
    if not classes or ignore in classes:
        raise InputError(f"{path} names no classes or ignores one of them: {example}")
    return classes, ignore


def _class_id(key: str) -> int | None:
    """The id that a key of `classes.json` gives, None when it gives none that a mask could hold."""
    # The length is checked first: Python refuses to convert thousands of digits.
    if not (key.isascii() and key.isdecimal() and len(key) <= len(str(MAX_CLASS_ID))):
        return None
    return int(key) if int(key) <= MAX_CLASS_ID else None


def _read_mask(path: Path, class_ids: tuple[int, ...], ignore: int | None) -> np.ndarray:
    """(H, W) class ids of one PNG mask; InputError when it holds anything else."""
    image = read_image(path)
    if image.mode not in _MASK_MODES:
        raise InputError(f"mask {path} is a {image.mode} image: save class ids in one channel or a palette")
    values = np.array(image)
    allowed = [*class_ids, *([] if ignore is None else [ignore])]
    unknown = np.setdiff1d(np.unique(values), allowed)
    if unknown.size:
        raise InputError(
            f"mask {path} holds id {int(unknown[0])}, which {CLASSES_JSON} doesn't list: "
            'add the class, or {"ignore": '
            f"{int(unknown[0])}"
            "} to leave such pixels out"
        )
    return values.astype(id_dtype(allowed))
