"""From a decoded frame to the rows that the patch embedding's weights are applied to.

The frame's colors become RGB in [0, 1] and are normalised; the frame is resized with an antialiased triangle
filter, as torch's bilinear interpolation does it, and cut into crops, and these into patches.

`run(frame, chroma, table, parameters, out, problem)`, all on one device:
- frame, chroma: uint8, memory that begins with the frame's first row; of what shape doesn't matter. Layouts:
  - "rgb": a row is (W, 3) bytes R G B.
  - "nv12": a row of the frame is W bytes Y; `chroma` has (H + 1) / 2 rows of ((W + 1) / 2, 2) bytes U V.
  - "yuyv": a row is ((W + 1) / 2, 4) bytes Y U Y V.
  Otherwise chroma is None. Rows may have any stride and any alignment.
- table: int32, as `ops.geometry.Geometry.table` makes it for up to problem.crops crops. Nothing checks that
  the frame's memory is as large as it says.
- parameters: fp32, as `ops.prep.parameters.parameters` makes them: strides, colors, normalisation.
- out: contiguous (crops * P, 3 * patch * patch), in the order of op `patches`. Rows of crops that the table
  doesn't have are left as they are.

Table and parameters are read from device memory, so that a captured graph takes frames of any size.

A chroma sample belongs to all its pixels, two or four, without interpolation. That is also what FFmpeg's
swscale, which converts the frames of files, does with planar 4:2:0 of even height and with 4:2:2 of even
width. Its RGB is up to three of 255 levels darker: it cuts to whole numbers, here nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

IMPLEMENTATIONS = ("reference", "fused")


@dataclass(frozen=True)
class Problem:
    """Up to `crops` of `size` x `size` pixels, patches of `patch` x `patch`; `dtype` of the result; `layout`:
    'rgb', 'nv12' or 'yuyv'."""

    crops: int
    size: int
    patch: int
    dtype: torch.dtype
    layout: str
