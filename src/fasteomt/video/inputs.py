"""From what a user names to videos and sets of images, each with the name of its output folder."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fasteomt.errors import InputError
from fasteomt.files import require_file
from fasteomt.video.source import Selection, Source, Spec

# What folders and globs are searched for. A file that is named is tried whatever its suffix.
VIDEO_SUFFIXES = frozenset(
    [".3gp", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4"]
) | frozenset([".mpeg", ".mpg", ".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv"])
IMAGE_SUFFIXES = frozenset([".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"])


@dataclass(frozen=True)
class Input:
    """One video, or images that belong together. `name` is the output folder's."""

    kind: Literal["video", "images"]
    name: str
    paths: tuple[Path, ...]
    location: str


def find_inputs(spec: Spec) -> list[Input]:
    """Expand a path, a glob or a list of these.

    A folder stands for the videos in it, or, where there is none, for the images; folders inside are not
    searched. A glob stands for the videos and images it matches. Images of one folder belong together and
    are named after it; an image alone is named after its file.

    Raises:
        InputError: nothing there, not a regular file, or two inputs would have the same output folder.
    """
    specs: Iterable[str | Path] = [spec] if isinstance(spec, str | Path) else spec
    videos: dict[Path, None] = {}
    folders: dict[Path, dict[Path, None]] = {}
    whole: set[Path] = set()
    for one in specs:
        files = _expand(one)
        if Path(one).is_dir():
            whole.update(path.parent for path in files)
        for path in files:
            if path.suffix.lower() in IMAGE_SUFFIXES:
                folders.setdefault(path.parent, {})[path] = None
            else:
                videos[path] = None
    found = [Input("video", _name_of(path), (path,), str(path)) for path in videos]
    for folder, images in folders.items():
        paths = tuple(images)
        alone = len(paths) == 1 and folder not in whole
        name = _name_of(paths[0]) if alone else folder.resolve().name or "images"
        found.append(Input("images", name, paths, str(paths[0] if alone else folder)))
    if not found:
        raise InputError("no input: name a video, an image, a folder or a glob")
    _refuse_equal_names(found)
    return found


def open_input(one: Input, selection: Selection) -> Source:
    """Open an input for reading.

    Raises:
        InputError: it can't be read, or has nothing within the selection.
    """
    if one.kind == "images":
        from fasteomt.video.images import ImageSource

        return ImageSource(one.paths, one.name, one.location, selection)
    from fasteomt.video.movie import VideoSource

    return VideoSource(one.paths[0], one.name, selection)


def _name_of(path: Path) -> str:
    """The output folder's name for a file: its stem, unless it leads elsewhere as that of '...mp4'."""
    return path.stem if path.stem.strip(". ") else path.name


def _expand(spec: str | Path) -> list[Path]:
    if not str(spec):
        raise InputError("an input is empty: name a video, an image, a folder or a glob")
    path = Path(spec)
    if path.is_dir():
        media = _media(path.iterdir())
        videos = [file for file in media if file.suffix.lower() in VIDEO_SUFFIXES]
        if not media:
            raise InputError(f"{path}: no videos or images in this folder")
        return videos or media
    if path.exists():
        require_file(path)
        return [path]
    if glob.has_magic(str(spec)):
        media = _media(Path(match) for match in glob.glob(str(spec), recursive=True))
        if not media:
            raise InputError(f"{spec}: no video or image matches: check the pattern")
        return media
    raise InputError(f"{spec}: no such file or folder: check the path")


def _media(paths: Iterable[Path]) -> list[Path]:
    """The videos and images among the paths, `frame2` before `frame10`."""
    known = VIDEO_SUFFIXES | IMAGE_SUFFIXES
    files = [p for p in paths if p.suffix.lower() in known and not p.name.startswith(".") and p.is_file()]
    return sorted(files, key=_natural)


def _natural(path: Path) -> tuple[str, list[tuple[int, str]]]:
    parts = re.split(r"(\d+)", path.name.casefold())
    # Not isdigit: that holds for superscripts too, which int refuses.
    return str(path.parent), [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _refuse_equal_names(inputs: list[Input]) -> None:
    names: dict[str, Input] = {}
    for one in inputs:
        other = names.setdefault(one.name.casefold(), one)
        if other is not one:
            raise InputError(
                f"{other.location} and {one.location} would both be written to '{one.name}': "
                "rename one, or run them apart with another --out"
            )
