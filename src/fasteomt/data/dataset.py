"""A data set for semantic segmentation: images with one class id per pixel, whatever the files were.

On disk a data set is a root folder with one folder per split. A split is either COCO
(`_annotations.coco.json` beside its images, see `coco.py`) or PNG masks (`images/` and `masks/`, see
`folders.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fasteomt.errors import InputError
from fasteomt.images import image_size, open_rgb


@dataclass(frozen=True)
class Sample:
    """One image and its true mask; both are read when asked for, never kept."""

    name: str  # relative path of the image, with forward slashes
    image_path: Path
    size: tuple[int, int]  # (height, width)
    read_mask: Callable[[], np.ndarray]

    def rgb(self) -> np.ndarray:
        """(H, W, 3) uint8 RGB, as stored in the file: an EXIF orientation is not applied."""
        return np.array(open_rgb(self.image_path, upright=False))

    def mask(self) -> np.ndarray:
        """(H, W) class ids, in the `fasteomt.ids.id_dtype` of the set's ids."""
        return self.read_mask()


@dataclass(frozen=True)
class SegmentationSet:
    """The samples of one split, with the classes that their masks may hold.

    `ignore` is an id outside `classes`: pixels that carry it count neither for nor against a model.
    `warnings` says, one line each, what was dropped or changed while reading.
    `label_files` are the files that the masks come from.
    """

    root: Path
    classes: dict[int, str]
    samples: tuple[Sample, ...]
    ignore: int | None = None
    warnings: list[str] = field(default_factory=list)
    label_files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def digest(self) -> str:
        """SHA-256 over classes, label files and image files: equal for equal data, wherever it lies."""
        total = hashlib.sha256(json.dumps([sorted(self.classes.items()), self.ignore]).encode())
        labels = [(path.name, path) for path in self.label_files]
        for name, path in [*labels, *((sample.name, sample.image_path) for sample in self.samples)]:
            # A file name that isn't UTF-8 comes with surrogates.
            total.update(name.encode("utf-8", "surrogateescape") + file_sha256(path))
        return total.hexdigest()


def open_dataset(root: str | Path, split: str = "valid") -> SegmentationSet:
    """Open `root/split`, in whichever of the two layouts it is.

    Raises:
        InputError: no such split, neither layout or both at once, or anything wrong inside.
    """
    # The two readers build on the types above.
    from fasteomt.data.coco import COCO_JSON, load_coco
    from fasteomt.data.folders import MASKS_DIR, load_folders

    root = Path(root)
    if not root.is_dir():
        raise InputError(f"data set {root} is not a folder: give the folder that holds train/ and valid/")
    folder = root / split
    if not folder.is_dir():
        found = ", ".join(sorted(p.name for p in root.iterdir() if p.is_dir())) or "none"
        raise InputError(
            f"data set {root} has no split '{split}' (folders there: {found}): name another split"
        )
    has_coco, has_masks = (folder / COCO_JSON).exists(), (folder / MASKS_DIR).is_dir()
    if has_coco and has_masks:
        raise InputError(f"{folder} holds both {COCO_JSON} and {MASKS_DIR}/: remove one of the two")
    if has_coco:
        return load_coco(folder / COCO_JSON)
    if has_masks:
        return load_folders(folder)
    raise InputError(f"{folder} holds neither {COCO_JSON} nor {MASKS_DIR}/: one of them must give the labels")


def check_size(path: Path, size: tuple[int, int], expected: tuple[int, int], source: str) -> None:
    """Raise InputError unless an image's (height, width) is the one in `source`."""
    if size == expected:
        return
    advice = "fix one of the two"
    if size == expected[::-1] and image_size(path, upright=True) == expected:
        advice = "it is stored turned (EXIF orientation), save it upright"
    raise InputError(
        f"{path} is {size[1]}x{size[0]} pixels but {expected[1]}x{expected[0]} in {source}: {advice}"
    )


def file_sha256(path: Path) -> bytes:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
