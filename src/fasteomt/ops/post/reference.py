"""Frame by frame in fp32, everything at full size. It reads the tables on the host."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.ops.geometry import HEAD
from fasteomt.ops.post import UNIT, Problem
from fasteomt.ops.target import Target


def unsupported(target: Target, problem: Problem) -> str | None:
    return None


def run(
    masks: Tensor,
    classes: Tensor,
    tables: Tensor,
    ids: Tensor,
    weights: Tensor,
    scores: Tensor,
    out: Tensor,
    sums: Tensor | None = None,
) -> None:
    size, per_frame = scores.shape[-1], len(masks) // len(tables)
    weights.copy_(classes.float().softmax(dim=-1)[..., :-1])
    probabilities = F.interpolate(masks.float(), (size, size), mode="bilinear").sigmoid()
    scores.copy_(torch.einsum("bqyx,bqk->bkyx", probabilities, weights))
    for frame, table in enumerate(tables.tolist()):
        height, width, h, w, axis, crops = table[:HEAD]
        total, count = scores.new_zeros(scores.shape[1], h, w), scores.new_zeros(h, w)
        for start, crop in zip(table[HEAD : HEAD + crops], scores[frame * per_frame :], strict=False):
            y, x = (start, 0) if axis == 0 else (0, start)
            total[:, y : y + size, x : x + size] += crop
            count[y : y + size, x : x + size] += 1
        resized = F.interpolate((total / count)[None], (height, width), mode="bilinear")[0]
        best, index = resized.max(dim=0)
        out[frame, : height * width] = ids[index.flatten()].to(out.dtype)
        if sums is not None:
            share = best / resized.sum(dim=0).clamp_min(torch.finfo(torch.float32).tiny)
            fixed = (share * UNIT).round().long().flatten()
            sums[frame].zero_()
            sums[frame, :, 0].index_add_(0, index.flatten(), torch.ones_like(fixed))
            sums[frame, :, 1].index_add_(0, index.flatten(), fixed)
