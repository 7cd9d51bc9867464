"""Presentation times that can be relied on, from what containers and decoders say."""

from __future__ import annotations

import heapq
from fractions import Fraction

import av

_DEFAULT_RATE = Fraction(25)
# Rates outside are artefacts of a header, not of a camera.
_SANE_RATES = (Fraction(1, 60), Fraction(2000))


def nominal_rate(stream: av.VideoStream) -> Fraction | None:
    """Frames per second as the container tells it, where that is plausible. For display and gaps only."""
    for rate in (stream.average_rate, stream.guessed_rate):
        if rate and _SANE_RATES[0] <= rate <= _SANE_RATES[1]:
            return Fraction(rate)
    return None


class Clock:
    """Gives every decoded frame a time, strictly later than the last one's.

    Times are seconds since the stream's start (its `start_time`; where there is none, its first frame).
    Missing times follow at the nominal rate. A time that does not come after the last one is replaced by
    half a frame after that, so that later, correct ones stay as they are.
    """

    def __init__(self, stream: av.VideoStream, format_name: str) -> None:
        self._base = Fraction(stream.time_base or Fraction(1, 1000))
        self._step = 1 / (nominal_rate(stream) or _DEFAULT_RATE)
        self._origin = None if stream.start_time is None else stream.start_time * self._base
        self._last: Fraction | None = None
        # AVI has no presentation times, and what is derived from B-frames there jumps: frames take the
        # times of the packets, which are evenly spaced, in order.
        self._packet_times: list[int] | None = [] if format_name == "avi" else None
        self.missing = 0
        self.repaired = 0

    @property
    def seekable(self) -> bool:
        return self._origin is not None and self._packet_times is None

    def packet(self, packet: av.Packet) -> None:
        """Tell of a packet that goes to the decoder."""
        if self._packet_times is not None and packet.dts is not None:
            heapq.heappush(self._packet_times, packet.dts)

    def lost(self) -> None:
        """Tell of a packet that gave an error instead of a frame."""
        if self._packet_times:
            heapq.heappop(self._packet_times)

    def restart(self) -> None:
        """Forget the last time, after a seek."""
        self._last = None

    def raw_seconds(self, pts: int | None) -> Fraction | None:
        """A stream time as seconds since the start."""
        return None if pts is None or self._origin is None else pts * self._base - self._origin

    def ticks(self, seconds: Fraction) -> int:
        """The inverse of `raw_seconds`."""
        return int((seconds + (self._origin or 0)) / self._base)

    def frame(self, frame: av.VideoFrame) -> Fraction:
        """The frame's time in seconds."""
        pts = frame.pts
        if self._packet_times is not None:
            pts = heapq.heappop(self._packet_times) if self._packet_times else None
        if pts is None:
            self.missing += 1
            seconds = Fraction(0) if self._last is None else self._last + self._step
        else:
            if self._origin is None:
                self._origin = pts * self._base
            seconds = pts * self._base - self._origin
            if self._last is None:
                seconds = max(seconds, Fraction(0))
            elif seconds <= self._last:
                self.repaired += 1
                seconds = self._last + self._step / 2
        self._last = seconds
        return seconds

    def notes(self) -> list[str]:
        """What was made up."""
        notes = []
        if self.missing:
            rate = float(1 / self._step)
            notes.append(f"{self.missing} frames without a time were placed at {rate:g} frames a second")
        if self.repaired:
            notes.append(f"{self.repaired} frames whose time did not come after the last one's were moved")
        return notes
