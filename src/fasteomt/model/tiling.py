"""From a frame to square crops, and from the crops' logits back to a mask of the frame's size.

Upstream's semantics: the frame is resized so that its short side is the crop size, cut into evenly
overlapping squares along its long side, and the class scores are averaged where squares overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.errors import InputError

# Crops of one frame at most: 0.8 GB of pixels at the usual crop size, and far more than pictures need.
MAX_CROPS = 256


def check_frame(height: int, width: int) -> None:
    """Check a frame's shape before anything of its resized size is allocated.

    Raises:
        InputError: so long and thin that it makes more than `MAX_CROPS` crops.
    """
    # Whatever the crop size is: a frame makes as many squares as its short side fits into its long one.
    count = -(-max(height, width) // min(height, width))
    if count > MAX_CROPS:
        raise InputError(
            f"a frame of {width}x{height} pixels makes {count} crops, more than {MAX_CROPS}: "
            "cut it into shorter pieces"
        )


@dataclass(frozen=True)
class Tiling:
    """Where the crops of a frame lie.

    `height`, `width`: the frame's size; `resized`: (height, width) after resizing; `starts`: the crops'
    offsets along the long side, in resized pixels; `axis`: 0 if that side is vertical, else 1.
    """

    height: int
    width: int
    crop: int
    resized: tuple[int, int]
    starts: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, height: int, width: int, crop: int) -> Tiling:
        """The tiling of a frame for square crops of `crop` pixels.

        Raises:
            InputError: as `check_frame`.
        """
        check_frame(height, width)
        short, long = min(height, width), max(height, width)
        # One product, then one division: integers here equal the float arithmetic of torchvision's resize.
        long = int(crop * long / short)
        count = -(-long // crop)
        # Integer arithmetic, so that the last crop always ends on the last pixel.
        starts = tuple(j * (long - crop) // (count - 1) for j in range(count)) if count > 1 else (0,)
        axis = 0 if height > width else 1
        return cls(height, width, crop, (long, crop) if axis == 0 else (crop, long), starts, axis)

    def slices(self) -> Iterable[tuple[slice, slice]]:
        """(rows, columns) of each crop in the resized frame."""
        for start in self.starts:
            along, across = slice(start, start + self.crop), slice(0, self.crop)
            yield (along, across) if self.axis == 0 else (across, along)


def crops_of_frame(frame: Tensor, tiling: Tiling, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(3, H, W) RGB, uint8 or floating in [0, 1] -> (crops, 3, S, S) fp32, normalised."""
    x = frame.float() / 255 if frame.dtype == torch.uint8 else frame.float()
    scale = torch.tensor([mean, std], device=x.device)[:, :, None, None]
    x = (x - scale[0]) / scale[1]
    if x.shape[-2:] != tiling.resized:
        x = F.interpolate(x[None], tiling.resized, mode="bilinear", antialias=True)[0]
    return torch.stack([x[:, rows, columns] for rows, columns in tiling.slices()])


def class_scores(mask_logits: Tensor, class_logits: Tensor, crop: int) -> Tensor:
    """Per-pixel class scores: queries' mask probabilities weighted by their class probabilities.

    Args:
        mask_logits: (B, Q, s, s); upsampled to the crop first, then squashed: the order matters.
        class_logits: (B, Q, K + 1); the last, "no object", takes part in the softmax and is then dropped.

    Returns:
        (B, K, crop, crop), non-negative.
    """
    masks = F.interpolate(mask_logits, (crop, crop), mode="bilinear").sigmoid()
    classes = class_logits.softmax(dim=-1)[..., :-1]
    return torch.einsum("bqhw,bqk->bkhw", masks, classes)


def untile(scores: Tensor, tiling: Tiling) -> Tensor:
    """(crops, K, S, S) -> (K, resized height, resized width), averaged where crops overlap."""
    total = scores.new_zeros(scores.shape[1], *tiling.resized)
    count = scores.new_zeros(tiling.resized)
    for crop_scores, (rows, columns) in zip(scores, tiling.slices(), strict=True):
        total[:, rows, columns] += crop_scores
        count[rows, columns] += 1
    return total / count


@dataclass(frozen=True)
class ClassMap:
    """What is left of a frame's scores: the winning class index (H, W) int64 and its probability (H, W)."""

    index: Tensor
    probability: Tensor


def class_map(scores: Tensor, height: int, width: int, chunk: int = 8) -> ClassMap:
    """Resize (K, h, w) scores to the frame and take the best class at each pixel.

    A pixel's probability of a class is its score over the sum of all classes' scores. Classes are resized
    `chunk` at a time and compared as they come, so memory stays flat for hundreds of classes; equal scores
    go to the class that comes first, as argmax has it.
    """
    index = scores.new_zeros((height, width), dtype=torch.long)
    best = scores.new_full((height, width), -torch.inf)
    total = scores.new_zeros((height, width))
    for first in range(0, scores.shape[0], chunk):
        part = F.interpolate(scores[None, first : first + chunk], (height, width), mode="bilinear")[0]
        part_best, part_index = part.max(dim=0)
        wins = part_best > best
        index = torch.where(wins, part_index + first, index)
        best = torch.where(wins, part_best, best)
        total += part.sum(dim=0)
    return ClassMap(index, best / total.clamp_min(torch.finfo(total.dtype).tiny))
