"""Gate M: mask logits and masks of a few frames, evenly spaced over the clip."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fasteomt.errors import InputError
from fasteomt.gates.limits import Limits
from fasteomt.metrics import ConfusionMatrix


class Cosine:
    """Cosine of two vectors that come in pieces: <x, y> / (|x| |y|), accumulated in fp64."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)

    def update(self, reference: Tensor, other: Tensor) -> None:
        """Add the next pieces, of equal shape and any floating dtype."""
        x, y = reference.flatten().double(), other.flatten().double()
        self._sums += torch.stack([x @ y, x @ x, y @ y]).cpu()

    @property
    def value(self) -> float:
        """In [-1, 1]; -1, which no limit lets pass, where there is none: for zeros, infinities and NaN."""
        product, x, y = self._sums.tolist()
        norm = math.sqrt(x) * math.sqrt(y) if x > 0 and y > 0 else 0.0
        if not (norm > 0 and math.isfinite(norm) and math.isfinite(product)):
            return -1.0
        return max(-1.0, min(1.0, product / norm))


@dataclass(frozen=True)
class FrameCosines:
    """Of one frame's mask logits: `all` queries alike, which is what has a limit; and `objects`, each query
    weighted by the reference's probability that it is an object, which tells whether a deviation is in
    queries that the mask is made of."""

    all: float
    objects: float


class MaskLogits:
    """`FrameCosines` of the crops of a frame, which come in batches."""

    def __init__(self) -> None:
        self._all, self._objects = Cosine(), Cosine()

    def update(self, reference: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
        """Add mask logits (B, Q, s, s) and class logits (B, Q, K + 1) of the same crops."""
        self._all.update(reference[0], other[0])
        weight = 1 - reference[1].double().softmax(dim=-1)[..., -1]
        weighted = (logits.double() * weight[..., None, None] for logits in (reference[0], other[0]))
        self._objects.update(*weighted)

    @property
    def cosines(self) -> FrameCosines:
        return FrameCosines(self._all.value, self._objects.value)


@dataclass(frozen=True)
class FrameAgreement:
    """One frame: cosines of its mask logits, and IoU of each class that is large enough in it."""

    index: int
    cosines: FrameCosines
    iou: dict[int, float]
    confusion: np.ndarray


class MaskStatistics:
    """What gate M judges. Frames come in order, once; memory doesn't grow with the clip.

    Evenly spaced frames are found without knowing the clip's length: every stride-th frame is kept, and the
    stride doubles whenever twice as many as needed are there. `wants` says whether to hand a frame in.
    """

    def __init__(self, ids: Iterable[int], limits: Limits) -> None:
        self._ids = tuple(ids)
        self._limits = limits
        self._stride = 1
        self._kept: list[FrameAgreement] = []

    def wants(self, index: int) -> bool:
        return index % self._stride == 0

    def update(self, index: int, cosines: FrameCosines, reference: np.ndarray, mask: np.ndarray) -> None:
        """Add frame number `index`.

        Args:
            cosines: of the mask logits of all the frame's crops.
            reference, mask: (H, W) class ids.
        """
        matrix = ConfusionMatrix(self._ids)
        matrix.update(reference, mask)
        large = np.flatnonzero(matrix.counts.sum(axis=1) >= self._limits.min_pixels)
        iou = matrix.iou()
        judged = {int(matrix.ids[place]): iou[int(matrix.ids[place])] for place in large}
        self._kept.append(FrameAgreement(index, cosines, judged, matrix.counts))
        if len(self._kept) == 2 * self._limits.frames:
            self._kept = self._kept[::2]
            self._stride *= 2

    def chosen(self) -> list[FrameAgreement]:
        """The frames that are judged.

        Raises:
            InputError: the clip has fewer.
        """
        wanted, kept = self._limits.frames, len(self._kept)
        if kept < wanted:
            raise InputError(f"gate M: the clip has {kept} frames, fewer than {wanted}: take a longer one")
        return [self._kept[round(i * (kept - 1) / (wanted - 1))] for i in range(wanted)]

    def values(self) -> dict[str, float]:
        """Worst cosine and worst IoU of a class over the frames, which have limits. Beside them: the worst
        cosine of queries that are objects; the pool's worst IoU, for all classes; `mask_frames`, how many;
        and `mask_classes`, how many classes were large enough in one of them.

        Raises:
            InputError: fewer frames than needed, or no class is large enough in any.
        """
        frames = self.chosen()
        judged = [(iou, class_id) for frame in frames for class_id, iou in frame.iou.items()]
        if not judged:
            raise InputError(
                f"gate M: no class has {self._limits.min_pixels} pixels in any frame: take larger frames"
            )
        pool = ConfusionMatrix(self._ids)
        pool.counts += sum(frame.confusion for frame in frames)
        return {
            "cosine": min(frame.cosines.all for frame in frames),
            "iou": min(judged)[0],
            "cosine_of_objects": min(frame.cosines.objects for frame in frames),
            "mask_pooled_iou": min(iou for iou in pool.iou().values() if not math.isnan(iou)),
            "mask_frames": len(frames),
            "mask_classes": len({class_id for _, class_id in judged}),
        }
