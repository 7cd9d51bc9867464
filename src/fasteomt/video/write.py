"""Writing one video file: exact or H.264, variable frame rate, renamed into place when complete."""

from __future__ import annotations

import contextlib
import os
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import cast

import av
import numpy as np
from av.container import OutputContainer
from av.video.reformatter import Colorspace
from av.video.stream import VideoStream

from fasteomt.errors import FastEomtError, InputError, UnsupportedError
from fasteomt.files import check_target, temporary_beside

# Encoder and pixel format for each codec name; "ffv1" is the lossless one.
_ENCODERS = {"h264": ("libx264", "yuv420p"), "ffv1": ("ffv1", "gray")}
_CONTAINERS = {".mp4": "mp4", ".mkv": "matroska", ".mov": "mov"}
# ITU-T H.273 code points: 1 is BT.709 for matrix, primaries and transfer; range 1 is limited, 2 is full.
_BT709 = 1
_LIMITED, _FULL = 1, 2
# Ticks per second that a time base reaches at least, so that variable frame rates keep their times.
_TICKS = 90_000


def time_base_for(fps: Fraction | None) -> Fraction:
    """A time base in which every multiple of `1 / fps` is exact and other times are within 1/90000 s."""
    if fps is None or fps.numerator > 1_000_000:
        return Fraction(1, _TICKS)
    return Fraction(1, fps.numerator * -(-_TICKS // fps.numerator))


def require_encoder(codec: str) -> None:
    """Check that this PyAV build can encode `codec` ("h264" or "ffv1").

    Raises:
        UnsupportedError: the encoder is not part of the build.
    """
    name = _ENCODERS[codec][0]
    try:
        av.codec.Codec(name, "w")
    except (ValueError, av.error.FFmpegError):
        raise UnsupportedError(
            f"video encoder '{name}' is not in this build of PyAV {av.__version__}: "
            "install the 'av' wheel from PyPI, or leave this output out with --save"
        ) from None


class VideoWriter:
    """Writes frames to `path` (.mp4, .mkv or .mov) and renames the file into place on `close()`.

    Args:
        path: final name; until `close()` the data are in a hidden file beside it.
        width, height: size of the frames given to `write`, pixels. Where chroma is halved, sizes
            in the file are even: an odd last column or row is repeated once there.
        fps: nominal frames per second; frames written without a time follow at this rate (default 25).
        codec: "h264" (libx264, BT.709 limited range, tagged) or "ffv1" (lossless).
        bitrate: average bits per second, and the same bytes for the same frames; without it H.264 runs at
            constant quality `crf`.
        pix_fmt: pixel format in the file; default yuv420p for H.264, and for FFV1 gray, or bgr0 with
            `lossless=True`.
        lossless: exact RGB frames: selects FFV1 with bgr0.
        time_base: seconds per tick in the file; default `time_base_for(fps)`. Matroska stores milliseconds.
        gop: most frames between key frames.
        overwrite: replace an existing `path`; a link stays, and the file that it leads to is replaced.

    Raises:
        InputError: unknown suffix or codec, existing target, target that is no file, folder that can't be
            written.
        UnsupportedError: the encoder is missing or refuses the size or format.
    """

    def __init__(
        self,
        path: str | Path,
        width: int,
        height: int,
        fps: Fraction | float | None = None,
        codec: str = "h264",
        *,
        bitrate: int | None = None,
        crf: int = 18,
        pix_fmt: str | None = None,
        lossless: bool = False,
        time_base: Fraction | None = None,
        gop: int | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.width, self.height = width, height
        self.frames = 0
        if self.path.suffix.lower() not in _CONTAINERS:
            raise InputError(f"{self.path}: unknown video suffix, use one of {', '.join(_CONTAINERS)}")
        self._target = check_target(self.path, overwrite=overwrite)
        if lossless:
            codec, pix_fmt = "ffv1", pix_fmt or "bgr0"
        if codec not in _ENCODERS:
            raise InputError(f"{self.path}: unknown codec '{codec}', use one of {', '.join(_ENCODERS)}")
        require_encoder(codec)
        rate = Fraction(fps).limit_denominator(1_000_000) if fps else Fraction(25)
        if rate <= 0:
            raise InputError(f"{self.path}: frame rate {fps} must be positive")
        self._rate = rate
        self._time_base = time_base or time_base_for(rate)
        self._finished = False
        self._last_tick: int | None = None
        self.temporary = temporary_beside(self._target)
        encoder, default_format = _ENCODERS[codec]
        self._format = pix_fmt or default_format
        self._container, self._stream = self._open(encoder, bitrate, crf, gop)

    def _open(
        self, encoder: str, bitrate: int | None, crf: int, gop: int | None
    ) -> tuple[OutputContainer, VideoStream]:
        chroma = self._format.startswith(("yuv420", "yuv422", "nv12"))
        coded_width = self.width + (self.width % 2 if chroma else 0)
        coded_height = self.height + (self.height % 2 if chroma and "422" not in self._format else 0)
        self._padding = (coded_height - self.height, coded_width - self.width)
        name = _CONTAINERS[self.path.suffix.lower()]
        # The index goes to the front, so that browsers play before the whole file has arrived.
        options = {"movflags": "+faststart"} if name in ("mp4", "mov") else {}
        # PyAV opens the file when the encoding starts.
        container = av.open(str(self.temporary), "w", format=name, options=options)
        try:
            stream = cast(VideoStream, container.add_stream(encoder, rate=self._rate))
            stream.width, stream.height, stream.pix_fmt = coded_width, coded_height, self._format
            context = stream.codec_context
            context.time_base = stream.time_base = self._time_base
            if gop is not None:
                context.gop_size = gop
            if encoder == "libx264":
                # With macroblock trees, what a given bitrate makes may differ from one run to the next.
                rate = {"mbtree": "0"} if bitrate else {"crf": str(crf)}
                context.options = {"preset": "veryfast"} | rate
                if bitrate:
                    context.bit_rate = bitrate
                if self._format.startswith("yuv"):
                    context.colorspace = context.color_primaries = context.color_trc = _BT709
                    context.color_range = _LIMITED
            else:
                slices = _slices(coded_width, coded_height)
                context.options = {"level": "3", "slicecrc": "1", "slices": str(slices), "g": "1"}
                context.color_range = _FULL
            container.start_encoding()
        except (OSError, ValueError, av.error.FFmpegError) as error:
            # Closing would write a trailer to a file that never got a header.
            del container
            self.temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise InputError(f"{self.path}: can't write there ({_reason(error)})") from None
            raise UnsupportedError(
                f"{self.path}: encoder '{encoder}' refuses {coded_width}x{coded_height} {self._format} "
                f"({_reason(error)})"
            ) from None
        return container, stream

    def write(self, image: np.ndarray, pts: float | None = None) -> None:
        """Append one frame.

        Args:
            image: (height, width, 3) uint8 RGB, or (height, width) uint8 / uint16 for gray formats.
            pts: presentation time in seconds; default: `frames written / fps`. A time that does not come
                after the last one is moved to one tick after it.

        Raises:
            InputError: the frame's size or dtype is not the writer's.
            FastEomtError: the encoder or the disk failed.
        """
        if image.shape[:2] != (self.height, self.width):
            raise InputError(
                f"{self.path}: frame {self.frames} is {image.shape[1]}x{image.shape[0]}, "
                f"the file is {self.width}x{self.height}"
            )
        seconds = Fraction(pts) if pts is not None else self.frames / self._rate
        tick = round(seconds / self._time_base)
        if self._last_tick is not None:
            tick = max(tick, self._last_tick + self._smallest_step)
        try:
            frame = self._frame(image)
            frame.pts, frame.time_base = tick, self._time_base
            self._container.mux(self._stream.encode(frame))
        except (OSError, av.error.FFmpegError) as error:
            raise FastEomtError(f"{self.path}: frame {self.frames} not written ({_reason(error)})") from error
        self._last_tick = tick
        self.frames += 1

    @property
    def _smallest_step(self) -> int:
        """Ticks between frames that stay apart in the file; Matroska rounds to milliseconds."""
        if self.path.suffix.lower() != ".mkv":
            return 1
        return max(1, -(-Fraction(1, 1000) // self._time_base))

    def _frame(self, image: np.ndarray) -> av.VideoFrame:
        if image.ndim == 2:
            wanted = np.dtype(np.uint16 if "16" in self._format else np.uint8)
            if image.dtype != wanted or not self._format.startswith("gray"):
                raise InputError(f"{self.path}: {image.dtype} mask in a {self._format} video")
            return av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format=self._format)
        if image.dtype != np.uint8 or image.shape[2:] != (3,):
            raise InputError(f"{self.path}: frames are (H, W, 3) uint8 RGB, got {image.shape} {image.dtype}")
        if any(self._padding):
            bottom, right = self._padding
            image = np.pad(image, ((0, bottom), (0, right), (0, 0)), mode="edge")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        if not self._format.startswith("yuv"):
            return frame.reformat(format=self._format)
        # swscale would take the matrix of the untagged source (BT.601), so both ends are named.
        frame = frame.reformat(
            format=self._format,
            dst_colorspace=Colorspace.ITU709,
            src_color_range=_FULL,
            dst_color_range=_LIMITED,
        )
        frame.colorspace = frame.color_primaries = frame.color_trc = _BT709
        frame.color_range = _LIMITED
        return frame

    def close(self) -> Path:
        """Finish the file and give it its name, which is returned.

        Raises:
            FastEomtError: the encoder or the disk failed.
        """
        self.finish()
        try:
            os.replace(self.temporary, self._target)
        except OSError as error:
            raise FastEomtError(f"{self.path}: can't be put in place ({_reason(error)})") from error
        return self.path

    def finish(self) -> None:
        """Finish the file under its temporary name.

        Raises:
            FastEomtError: the encoder or the disk failed.
        """
        if self._finished:
            return
        self._finished = True
        try:
            try:
                self._container.mux(self._stream.encode(None))
            finally:
                self._container.close()
        except (OSError, av.error.FFmpegError) as error:
            raise FastEomtError(f"{self.path}: not finished ({_reason(error)})") from error

    def abort(self) -> None:
        """Close and remove the temporary file; what has the final name is left alone."""
        with contextlib.suppress(FastEomtError):
            self.finish()
        self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _slices(width: int, height: int) -> int:
    """How many parts of an FFV1 frame are coded in parallel, each with a checksum of its own.

    A tiny frame has no room for several; past 352x288, FFmpeg's encoder refuses to make one alone.
    """
    large = width > 352 or height > 288
    return 4 if min(width, height) >= (2 if large else 64) else 1


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
