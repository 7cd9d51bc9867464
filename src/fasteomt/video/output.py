"""The output folder of one input: what goes where, and how an earlier result is kept until it is replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fasteomt.errors import InputError, UnsupportedError
from fasteomt.files import write_json
from fasteomt.video.sink import AreasSink, MaskPngSink, MaskSink, OverlayPngSink, OverlaySink, Sink
from fasteomt.video.source import Source
from fasteomt.video.write import require_encoder

SAVES = ("masks", "overlay", "areas", "masks-png")
_SUMMARY, _PARTIAL_SUMMARY = "summary.json", "summary.partial.json"


def check_save(save: Sequence[str], *, for_video: bool) -> None:
    """Check the names in `save`, and for videos that the encoders exist.

    Raises:
        InputError: an unknown name. UnsupportedError: a missing encoder.
    """
    unknown = [name for name in save if name not in SAVES]
    if unknown:
        raise InputError(f"--save {unknown[0]}: unknown, choose from {', '.join(SAVES)}")
    for name, codec in (("masks", "ffv1"), ("overlay", "h264")):
        if for_video and name in save:
            require_encoder(codec)


class OutputFolder:
    """`out/<name>`, with masks.mkv, overlay.mp4, areas.csv and summary.json; for images PNG folders instead
    of the videos. An incomplete result has `.partial` before the suffix of its files, and says so in its
    summary."""

    def __init__(self, out_dir: str | Path, name: str) -> None:
        self.path = Path(out_dir) / name

    def check(self, *, overwrite: bool) -> None:
        """Raises InputError if there is something already and `overwrite` is False, or no folder can be."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another --out")
        if not overwrite and self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(f"{self.path} is not empty: choose another --out or pass --overwrite")
        parent = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        if not parent.is_dir():
            raise InputError(f"{self.path}: {parent} is a file: choose another --out")

    def open_sinks(self, source: Source, save: Sequence[str], class_ids: Sequence[int]) -> dict[str, Sink]:
        """Create the folder and start the outputs, with encoders opened at the source's size.

        Raises:
            InputError: the folder can't be written. UnsupportedError: an encoder refuses the size.
        """
        sinks: dict[str, Sink] = {}
        # A folder that this run made and could not use is not left behind.
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in _distinct(save, source):
                sinks[name] = self._open(name, source, class_ids)
        except (OSError, InputError, UnsupportedError) as error:
            for sink in sinks.values():
                sink.discard()
            if made and self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()
            if isinstance(error, OSError):
                raise InputError(f"{self.path}: can't be written ({error.strerror or error})") from None
            raise
        return sinks

    def _open(self, name: str, source: Source, class_ids: Sequence[int]) -> Sink:
        if name == "areas":
            return AreasSink(self.path / "areas.csv")
        if name == "masks-png" or (name == "masks" and source.kind == "images"):
            return MaskPngSink(self.path / "masks", class_ids)
        if source.kind == "images":
            return OverlayPngSink(self.path / "overlay")
        if name == "masks":
            return MaskSink(self.path / "masks.mkv", source.width, source.height, source.fps, class_ids)
        return OverlaySink(self.path / "overlay.mp4", source.width, source.height, source.fps)

    def commit(self, sinks: Iterable[Sink], *, complete: bool) -> list[str]:
        """Give the outputs their names, and remove an earlier result's files that have no successor.

        A complete result replaces what was there; a partial one replaces a partial one only.

        Returns:
            The files' names within the folder.
        """
        names = []
        for sink in sinks:
            target = sink.target if complete else _partial(sink.target)
            sink.commit(target)
            names.append(target.name)
        obsolete = self._listed(_PARTIAL_SUMMARY) | (
            self._listed(_SUMMARY) if complete or not self._has_complete() else set()
        )
        for name in obsolete - set(names):
            _remove(self.path / name)
        return names

    def write_summary(self, content: dict[str, Any], *, complete: bool) -> Path:
        """Write summary.json, or summary.partial.json beside an earlier complete result's."""
        beside = not complete and self._has_complete()
        target = self.path / (_PARTIAL_SUMMARY if beside else _SUMMARY)
        write_json(target, content, overwrite=True)
        if not beside:
            (self.path / _PARTIAL_SUMMARY).unlink(missing_ok=True)
        return target

    def _summary(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _has_complete(self) -> bool:
        return self._summary(_SUMMARY).get("complete") is True

    def _listed(self, summary: str) -> set[str]:
        """Output names that a summary lists. Only plain names: a summary is a file that anyone can edit."""
        outputs = self._summary(summary).get("outputs", {})
        names = outputs.values() if isinstance(outputs, dict) else []
        stems = ("masks", "overlay", "areas")
        return {n for n in names if isinstance(n, str) and Path(n).name == n and n.split(".")[0] in stems}


def _distinct(save: Sequence[str], source: Source) -> list[str]:
    """The names once each; masks of images are PNG files anyway."""
    names = list(dict.fromkeys(save))
    if source.kind == "images" and "masks" in names and "masks-png" in names:
        names.remove("masks-png")
    return names


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.stem}.partial{target.suffix}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
