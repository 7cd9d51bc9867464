"""From logits to class ids of the frame, without a query's mask or a class's scores at the frame's size.

A crop's mask logits are upsampled to the crop's size, bilinearly, before the sigmoid; a class's score at a
pixel is the sum over queries of mask probability times class probability ("no object", the last class, takes
part in the softmax and is then dropped). Scores are averaged where crops overlap and resized to the frame,
bilinearly; the best class wins, of equal ones the first, and its probability is its share of all scores.

`run(masks, classes, tables, ids, weights, scores, out, sums=None)`, all contiguous, logits finite:
masks (B, Q, s, s) and classes (B, Q, K + 1), floating; tables (frames, HEAD + n) int32, one `Geometry.table`
a frame, whose crops are the first of B / frames; ids (K,) int32; out (frames, capacity) uint8, uint16 or
int32: of each frame its height x width ids, row by row. weights (B, Q, K) and scores (B, K, S, S), fp32, are
scratch. sums (frames, K, 2) int64, if given, is set to each class's number of pixels and to the sum of their
probabilities times UNIT, each rounded: integers, so that no order of adding changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

IMPLEMENTATIONS = ("reference", "fused")

UNIT = 2**20  # of probabilities' sums: what 1 counts


@dataclass(frozen=True)
class Problem:
    """`crops` of all frames, `queries` of one; `classes` without "no object"; `resolution` of the mask logits
    and `size` of the crops, pixels a side."""

    crops: int
    queries: int
    classes: int
    resolution: int
    size: int
