"""The output folder of one input: what goes where, and how an earlier result is kept until it is replaced."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fasteomt.errors import InputError
from fasteomt.files import (
    check_target,
    find_replaced,
    is_temporary,
    made_folder,
    remove,
    taken,
    write_json,
)
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
    summary.

    Args:
        out_dir: where the folder is made.
        name: the folder's, as `Input` has it.
        kind: of the source.
        save: as `check_save` takes it.
    """

    def __init__(
        self, out_dir: str | Path, name: str, kind: Literal["video", "images"], save: Sequence[str]
    ) -> None:
        self.path = Path(out_dir) / name
        self._targets = {one: self.path / file for one, file in _file_names(kind, save).items()}
        self._overwrite = False

    def check(self, sources: Iterable[Path], *, overwrite: bool) -> None:
        """Check that the result can be written, and that nothing is lost by it but an earlier result.

        Args:
            sources: all files that are read while this result, or another of the same run, is written; the
                model's too.

        Raises:
            InputError: there is something already and `overwrite` is False, no folder can be made, or a
                source, or a folder or link that no earlier run made, would be replaced.
        """
        self._overwrite = overwrite
        if not overwrite and self._inside():
            raise InputError(f"{self.path} is not empty: choose another --out or pass --overwrite")
        summaries = [self.path / _SUMMARY, self.path / _PARTIAL_SUMMARY]
        for summary in summaries:
            if summary.is_symlink():
                raise InputError(f"{summary} is a link: choose another --out, or move it away")
            check_target(summary, overwrite=True)
        listed = self._listed(_SUMMARY) | self._listed(_PARTIAL_SUMMARY)
        targets = [path for target in self._targets.values() for path in (target, _partial(target))]
        for target in targets:
            is_file = target.is_file() or not target.exists()
            if target.is_symlink() or not (is_file or target.name in listed):
                raise InputError(
                    f"{target} is not of an earlier result: choose another --out, or move it away"
                )
        found = find_replaced(sources, [*targets, *summaries, *(self.path / name for name in listed)])
        if found is not None:
            raise InputError(
                f"{found[0]} is a source or the model, and {found[1]} would be replaced: choose another --out"
            )

    def open_sinks(self, source: Source, class_ids: Sequence[int]) -> dict[str, Sink]:
        """Create the folder and start the outputs, with encoders opened at the source's size.

        Raises:
            InputError: the folder can't be written. UnsupportedError: an encoder refuses the size.
        """
        sinks: dict[str, Sink] = {}
        with made_folder(self.path):
            try:
                for name, target in self._targets.items():
                    sinks[name] = _open_sink(name, target, source, class_ids)
            except BaseException:
                for sink in sinks.values():
                    sink.discard()
                raise
        return sinks

    def claim(self) -> None:
        """Make the folder this result's: of two runs without overwrite, one gets it.

        Raises:
            InputError: another result, or something else, came into the folder since `check`.
        """
        if self._overwrite:
            return
        inside = self._inside()
        if inside:
            raise taken(inside[0])
        try:
            (self.path / _SUMMARY).touch(exist_ok=False)
        except FileExistsError:
            raise taken(self.path / _SUMMARY) from None
        except OSError:
            pass  # as on a full disk, where outputs can still be renamed

    def release(self) -> None:
        """Take an empty summary away, which `claim` made and `write_summary` could not fill."""
        summary = self.path / _SUMMARY
        with contextlib.suppress(OSError):
            if not self._overwrite and summary.stat().st_size == 0:
                summary.unlink()

    def has_summary(self) -> bool:
        """Whether a summary is there, of this result or an earlier one."""
        return any((self.path / name).exists() for name in (_SUMMARY, _PARTIAL_SUMMARY))

    def commit(self, sinks: Mapping[str, Sink], names: dict[str, str], *, complete: bool) -> None:
        """Give the outputs their names, and remove an earlier result's files that have no successor.

        A complete result replaces what was there; a partial one replaces a partial one only.

        Args:
            names: filled with the files' names within the folder, each when it is there.
        """
        for name, sink in sinks.items():
            target = sink.target if complete else _partial(sink.target)
            sink.commit(target)
            names[name] = target.name
        obsolete = self._listed(_PARTIAL_SUMMARY) | (
            self._listed(_SUMMARY) if complete or not self._has_complete() else set()
        )
        for name in obsolete - set(names.values()):
            remove(self.path / name)

    def write_summary(self, content: dict[str, Any], *, complete: bool) -> Path:
        """Write summary.json, or summary.partial.json beside an earlier complete result's."""
        beside = not complete and self._has_complete()
        target = self.path / (_PARTIAL_SUMMARY if beside else _SUMMARY)
        write_json(target, content, overwrite=True)
        if not beside:
            (self.path / _PARTIAL_SUMMARY).unlink(missing_ok=True)
        return target

    def _inside(self) -> list[Path]:
        """What is in the folder, without what a run that is gone, or goes on, has under temporary names."""
        if not self.path.is_dir():
            return []
        return sorted(path for path in self.path.iterdir() if not is_temporary(path))

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


def _file_names(kind: Literal["video", "images"], save: Sequence[str]) -> dict[str, str]:
    """What each of the outputs is called; one without a suffix is a folder of PNG files."""
    video = kind == "video"
    files = {"masks": "masks.mkv" if video else "masks", "overlay": "overlay.mp4" if video else "overlay"}
    files |= {"areas": "areas.csv", "masks-png": "masks"}
    # Masks of images are PNG files anyway.
    twice = "masks-png" if not video and "masks" in save else None
    return {name: files[name] for name in save if name != twice}


def _open_sink(name: str, target: Path, source: Source, class_ids: Sequence[int]) -> Sink:
    if name == "areas":
        return AreasSink(target)
    if not target.suffix:
        return OverlayPngSink(target) if name == "overlay" else MaskPngSink(target, class_ids)
    if name == "masks":
        return MaskSink(target, source.width, source.height, source.fps, class_ids)
    return OverlaySink(target, source.width, source.height, source.fps)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.stem}.partial{target.suffix}")
