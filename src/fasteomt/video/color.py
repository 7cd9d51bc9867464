"""Decoded frames -> RGB, by the colour tags that the stream carries."""

from __future__ import annotations

import av
import numpy as np
from av.video.reformatter import Colorspace, VideoReformatter

# ITU-T H.273 MatrixCoefficients -> swscale's matrix.
_MATRICES = {
    1: Colorspace.ITU709,
    4: Colorspace.FCC,
    5: Colorspace.ITU601,
    6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M,
    9: Colorspace.BT2020,
    10: Colorspace.BT2020,
}
_RGB_MATRIX, _UNSPECIFIED = 0, 2
_LIMITED, _FULL = 1, 2
_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}


def matrix_for(frame: av.VideoFrame) -> Colorspace:
    """The YUV matrix of a frame: by its tag; untagged or unknown, BT.709 for HD and BT.601 below.

    HD is what players take for it: 1280 or more pixels wide, or more than 576 high.
    """
    tagged = _MATRICES.get(int(frame.colorspace))
    if tagged is not None:
        return tagged
    return Colorspace.ITU709 if frame.width >= 1280 or frame.height > 576 else Colorspace.ITU601


class RgbConverter:
    """Converts the frames of one stream; `notes` says what was assumed. Not for several threads at once.

    Chroma subsampling, bit depth and range are undone; range is limited unless tagged full (gray and the
    JPEG formats are full). Values keep the stream's transfer and primaries. Alpha is dropped.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._reformatter = VideoReformatter()

    def __call__(self, frame: av.VideoFrame) -> np.ndarray:
        """One decoded frame -> (H, W, 3) uint8 RGB."""
        self._remark(frame)
        full = int(frame.color_range) == _FULL or frame.format.name.startswith("yuvj")
        matrix = matrix_for(frame)
        rgb = self._reformatter.reformat(
            frame,
            format="rgb24",
            src_colorspace=matrix,
            # The same on both ends: colours are decoded, not moved to another standard.
            dst_colorspace=matrix,
            src_color_range=_FULL if full else _LIMITED,
            dst_color_range=_FULL,
        )
        return rgb.to_ndarray()

    def _remark(self, frame: av.VideoFrame) -> None:
        matrix, transfer = int(frame.colorspace), int(frame.color_trc)
        if matrix not in _MATRICES and matrix not in (_RGB_MATRIX, _UNSPECIFIED):
            self._note(f"colour matrix {matrix} is not known here: {matrix_for(frame).name} was used")
        if transfer in _HDR_TRANSFERS:
            self._note(f"{_HDR_TRANSFERS[transfer]} (HDR) colours were used as stored, without tone mapping")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
