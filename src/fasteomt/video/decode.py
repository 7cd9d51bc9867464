"""Decoding one video file to the end, whatever its header says and whatever is broken in it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.stream import Disposition
from packaging.version import Version

from fasteomt.errors import InputError
from fasteomt.files import require_file
from fasteomt.video.integrity import find_damage
from fasteomt.video.timestamps import Clock, nominal_rate

# A title that isn't UTF-8 must not keep a video from being read. PyAV sees to it from version 19 on.
_OLD_PYAV = Version(av.__version__) < Version("19")
_OPEN_OPTIONS: dict[str, Any] = {"metadata_errors": "replace"} if _OLD_PYAV else {}
_NOT_A_VIDEO = "not a video, or cut before its index"

# FFmpeg draws text files as video.
_TEXT_FORMATS = frozenset(["tty", "bin", "xbin", "adf", "idf"])

# Presentation time in seconds, and the frame.
Timed = tuple[Fraction, av.VideoFrame]

# Seconds that a seek goes further back, when the one before landed behind the wanted time.
_SEEK_MARGINS = (0, 2, 10, 60)


class VideoDecoder:
    """The video stream of a file, as decoded frames with their times.

    `packets`, `decoded` and `skipped` count what was read, what became a frame, and what did not although it
    should have; `problems` says what was lost, `notes` what was repaired. All are final after `frames()`.

    Raises:
        InputError: missing, not a regular file, not a video, or without a video stream.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packets = self.decoded = self.skipped = 0
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._errors = self._damaged = self._early = self._hidden = 0
        self._first_error = ""
        require_file(path)
        try:
            # The prefix keeps a name like "12:30.mp4" from being read as a protocol.
            self._container = av.open(f"file:{path}", **_OPEN_OPTIONS)
        except (OSError, av.error.FFmpegError) as error:
            raise InputError(f"{path}: {_cannot_open(path, error)}") from None
        streams = [s for s in self._container.streams.video if not s.disposition & Disposition.attached_pic]
        is_text = self._container.format.name in _TEXT_FORMATS
        if not streams or is_text:
            found = (
                _NOT_A_VIDEO if is_text or not self._container.streams else "there is no video stream in it"
            )
            self._container.close()
            raise InputError(f"{path}: {found}: give a video file")
        self.stream = streams[0]
        self.stream.thread_type = "AUTO"
        self._format = self._container.format.name
        self._clock = Clock(self.stream, self._format)
        self.rate = nominal_rate(self.stream)

    @property
    def duration(self) -> float | None:
        """Seconds, as the header tells it: good for a progress bar."""
        if self.stream.duration is not None and self.stream.time_base is not None:
            return float(self.stream.duration * self.stream.time_base)
        return self._container.duration / av.time_base if self._container.duration else None

    def frames(self, start: float = 0.0) -> Generator[Timed, None, None]:
        """(seconds, frame) of all frames that are shown at `start` or later, in order."""
        at_end = False
        try:
            for seconds, frame in self._from(start) if start > 0 else self._decode():
                if float(seconds) >= start:
                    yield seconds, frame
            at_end = True
        finally:
            self._conclude(at_end)

    def close(self) -> None:
        self._container.close()

    def _from(self, start: float) -> Iterator[Timed]:
        """Frames from a key frame at or before `start`, or from the beginning where that can't be found."""
        if self._clock.seekable and set(self._format.split(",")) & {"mp4", "matroska"}:
            for margin in _SEEK_MARGINS:
                if start <= margin or not self._seek(max(Fraction(start) - margin, Fraction(0))):
                    break
                decoded = self._decode()
                first = next(decoded, None)
                if first is not None and float(first[0]) <= start:
                    yield first
                    yield from decoded
                    return
                decoded.close()
            self._reopen()
        yield from self._decode()

    def _seek(self, seconds: Fraction) -> bool:
        self._reset()
        try:
            self._container.seek(self._clock.ticks(seconds), stream=self.stream, backward=True)
        except av.error.FFmpegError:
            return False
        return True

    def _reopen(self) -> None:
        """Back to the beginning, which not every format can seek to."""
        self.close()
        fresh = VideoDecoder(self.path)
        self._container, self.stream, self._clock = fresh._container, fresh.stream, fresh._clock
        self._reset()

    def _reset(self) -> None:
        self.packets = self.decoded = 0
        self._errors = self._damaged = self._early = self._hidden = 0
        self._clock.restart()

    def _packets(self) -> Iterator[av.Packet]:
        """Packets with data. The last one is left out if the file breaks off in it: it would cost the
        decoder the frames that it still holds."""
        waiting: av.Packet | None = None
        try:
            for packet in self._container.demux(self.stream):
                if not packet.size:
                    continue
                if waiting is not None:
                    yield waiting
                waiting = packet
        except (OSError, av.error.FFmpegError) as error:
            self._errors += 1
            self.problems.append(f"reading stopped: {_text(error)}")
        if waiting is not None:
            if waiting.is_corrupt and not self._whole():
                self.packets += 1
            else:
                yield waiting

    def _decode(self) -> Generator[Timed, None, None]:
        first_pts: int | None = None
        before_first: list[int | None] = []
        key_seen = False
        for packet in self._packets():
            self.packets += 1
            self._clock.packet(packet)
            key_seen = key_seen or packet.is_keyframe
            if packet.is_discard or self._is_hidden(packet):
                self._hidden += 1
            elif not key_seen or _before(packet.pts, first_pts):
                self._early += 1
            elif first_pts is None:
                before_first.append(packet.pts)
            for frame in self._decode_packet(packet):
                if first_pts is None and frame.pts is not None:
                    first_pts = frame.pts
                    self._early += sum(_before(pts, first_pts) for pts in before_first)
                    before_first.clear()
                yield self._clock.frame(frame), frame
        yield from ((self._clock.frame(frame), frame) for frame in self._flush())

    def _decode_packet(self, packet: av.Packet | None) -> list[av.VideoFrame]:
        try:
            frames = self.stream.codec_context.decode(packet)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            if packet is None and isinstance(error, EOFError):
                raise
            self._errors += 1
            self._first_error = self._first_error or f"packet {self.packets - 1}: {_text(error)}"
            self._clock.lost()
            return []
        self.decoded += len(frames)
        self._damaged += sum(frame.is_corrupt for frame in frames)
        return frames

    def _flush(self) -> Iterator[av.VideoFrame]:
        """Frames that the decoder still holds; it may fail on some and have more."""
        with contextlib.suppress(EOFError):
            for _ in range(self.packets + 1):
                yield from self._decode_packet(None)

    def _is_hidden(self, packet: av.Packet) -> bool:
        # RFC 6386, 9.1: the show_frame bit. In VP8 a frame that is only referred to has a packet of its own.
        return self.stream.codec_context.name == "vp8" and not bytes(packet)[0] & 0x10

    def _whole(self) -> bool:
        return find_damage(self.path, self._format) is None

    def _conclude(self, at_end: bool) -> None:
        """Add up. Before the end the decoder still holds frames, so that only errors are known."""
        self.skipped = max(0, self.packets - self._hidden - self.decoded) if at_end else self._errors
        # Frames before the first key frame can't be decoded; that is how recordings of a broadcast begin.
        early = min(self._early, self.skipped)
        lost = max(self.skipped - early, self._errors)
        if lost:
            detail = f" (first: {self._first_error})" if self._first_error else ""
            self.problems.append(f"{lost} of {self.packets} packets gave no frame{detail}")
        if self._damaged:
            self.problems.append(f"{self._damaged} of {self.decoded} frames are damaged")
        damage = find_damage(self.path, self._format) if at_end else None
        if damage:
            self.problems.append(damage)
        if early:
            self.notes.append(f"{early} packets before the first complete picture were passed over")
        self.notes += self._clock.notes()


def _before(pts: int | None, first: int | None) -> bool:
    return pts is not None and first is not None and pts < first


def _text(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _cannot_open(path: Path, error: BaseException) -> str:
    if path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, av.error.InvalidDataError):
        return f"{_NOT_A_VIDEO}: give a video file"
    return f"can't be opened ({_text(error)})"
