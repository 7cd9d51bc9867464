"""What a stream's frames have in common, as kernels read it from device memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fasteomt.errors import InputError, brief

# Where the values lie: row strides in bytes, of the frame and of its chroma; matrix and offset that make RGB
# in [0, 1] of the bytes Y, U, V; gain and bias that normalise it (of RGB frames: that normalise bytes).
STRIDES, MATRIX, OFFSET, GAIN, BIAS, COUNT = 0, 2, 11, 14, 17, 20

# Weights of red and of blue in luma: ITU-R BT.601, BT.709, BT.2020 (non-constant luminance).
_LUMA = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}


@dataclass(frozen=True)
class Colors:
    """How YUV was made of RGB. `matrix`: 'bt601', 'bt709' or 'bt2020'; `full`: Y, U and V use all of 0 to
    255, else 16 to 235 and 16 to 240."""

    matrix: str
    full: bool

    def to_rgb(self) -> tuple[list[float], list[float]]:
        """(matrix, 3 x 3 by rows; offset): RGB in [0, 1] = matrix @ (Y, U, V) + offset, from bytes.

        Raises:
            InputError: no such matrix.
        """
        if self.matrix not in _LUMA:
            raise InputError(f"color matrix {brief(self.matrix)}: choose one of {', '.join(_LUMA)}")
        red, blue = _LUMA[self.matrix]
        green = 1 - red - blue
        black, luma, chroma = (0, 1 / 255, 1 / 255) if self.full else (16, 1 / 219, 1 / 224)
        of_u = [0, -2 * blue * (1 - blue) / green * chroma, 2 * (1 - blue) * chroma]
        of_v = [2 * (1 - red) * chroma, -2 * red * (1 - red) / green * chroma, 0]
        matrix = [value for u, v in zip(of_u, of_v, strict=True) for value in (luma, u, v)]
        offset = [-black * luma - 128 * (u + v) for u, v in zip(of_u, of_v, strict=True)]
        return matrix, offset


def parameters(
    strides: tuple[int, int],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    colors: Colors | None = None,
) -> Tensor:
    """fp32 (COUNT,), on the host.

    Args:
        strides: bytes from row to row, of the frame and of its chroma (0 if that has no rows of its own).
        mean, std: of RGB in [0, 1].
        colors: None for RGB frames.

    Raises:
        InputError: strides that fp32 can't hold, or as `Colors.to_rgb`.
    """
    if not 0 <= min(strides) <= max(strides) < 2**24:
        raise InputError(f"strides of {strides} bytes: they must be positive and less than 16 MiB")
    matrix, offset = colors.to_rgb() if colors else ([0.0] * 9, [0.0] * 3)
    gain = [1 / (value if colors else 255 * value) for value in std]
    bias = [-m / s for m, s in zip(mean, std, strict=True)]
    return torch.tensor([*strides, *matrix, *offset, *gain, *bias], dtype=torch.float32)
