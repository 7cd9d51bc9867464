"""Images with their masks in device memory, and random windows cut out of them there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt.data.dataset import SegmentationSet
from fasteomt.data.labelled import POINTS, Labelled, read_labelled
from fasteomt.data.processes import map_in_processes

IGNORE = 255
ZOOM = (0.7, 1.6)  # of a window, against the scale that prediction would use; log-uniform
BATCH = 16  # images that go to the device at a time


class Resident:
    """Room for `capacity` images on a device, each padded to a square of `side` pixels; the newest stay.

    images (N, 3, S, S) uint8 RGB; targets (N, S, S) uint8 class index, IGNORE outside the image and where no
    class is; sizes (N, 2) height, width; points (N, POINTS, 2) pixels y, x; filled () how many there are,
    on the device.
    """

    def __init__(self, capacity: int, side: int, class_ids: Sequence[int], device: torch.device) -> None:
        self.images = torch.zeros(capacity, 3, side, side, dtype=torch.uint8, device=device)
        self.targets = torch.full((capacity, side, side), IGNORE, dtype=torch.uint8, device=device)
        self.sizes = torch.zeros(capacity, 2, device=device)
        self.points = torch.zeros(capacity, POINTS, 2, device=device)
        self.filled = torch.zeros((), device=device)
        self.put_so_far = 0
        self._index_of = np.full(65536, IGNORE, dtype=np.uint8)
        self._index_of[list(class_ids)] = np.arange(len(class_ids))

    @classmethod
    def load(cls, data: SegmentationSet, device: torch.device, workers: int) -> Resident:
        """All images of a data set."""
        side = max(max(sample.size) for sample in data)
        resident = cls(len(data), side, list(data.classes), device)
        waiting: list[Labelled] = []
        for one in map_in_processes(read_labelled, data.samples, workers):
            waiting.append(one)
            if len(waiting) == BATCH:
                resident.put(waiting)
                waiting = []
        resident.put(waiting)
        return resident

    def __len__(self) -> int:
        return min(self.put_so_far, len(self.images))

    def put(self, samples: Sequence[Labelled]) -> None:
        """Add images, in place of the oldest once the room is full."""
        for start in range(0, len(samples), BATCH):
            self._put(samples[start : start + BATCH])

    def _put(self, samples: Sequence[Labelled]) -> None:
        capacity, side = len(self.images), self.images.shape[-1]
        images = np.zeros((len(samples), side, side, 3), np.uint8)
        targets = np.full((len(samples), side, side), IGNORE, np.uint8)
        for i, (rgb, mask, _) in enumerate(samples):
            height, width = mask.shape
            images[i, :height, :width] = rgb
            targets[i, :height, :width] = self._index_of[mask]
        sizes = np.array([sample.mask.shape for sample in samples], np.float32)
        points = np.array([sample.points for sample in samples], np.float32)
        slots = (np.arange(len(samples)) + self.put_so_far) % capacity
        where = self._moved(slots)
        self.images[where] = self._moved(images).permute(0, 3, 1, 2)
        self.targets[where] = self._moved(targets)
        self.sizes[where] = self._moved(sizes)
        self.points[where] = self._moved(points)
        self.put_so_far += len(samples)
        self.filled.fill_(len(self))

    def _moved(self, array: np.ndarray) -> Tensor:
        tensor, device = torch.from_numpy(array), self.images.device
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    def draw(self, count: int) -> Tensor:
        """`count` random places of the images that are there, drawn on the device."""
        return (torch.rand(count, device=self.images.device) * self.filled).long()

    def windows(self, index: Tensor, side: int, share: float, *, random: bool) -> tuple[Tensor, Tensor]:
        """Square windows of `share` of the image's short side, resized to `side` pixels: random ones, or the
        middle ones.

        Returns:
            (B, 3, side, side) in [0, 1], and (B, side, side) class index or IGNORE.
        """
        device, count, padded = self.images.device, len(index), self.images.shape[-1]
        size = self.sizes[index]
        window = size.min(dim=1).values * share
        centre, flip = size / 2, torch.ones(count, device=device)
        if random:
            draw = torch.rand(5, count, device=device)
            low, high = map(math.log, ZOOM)
            window = window / (low + draw[0] * (high - low)).exp()
            point = self.points[index, (draw[1] * POINTS).long().clamp_max(POINTS - 1)]
            centre = point + (draw[2:4].T - 0.5) * 0.9 * window[:, None]
            # Within the image as far as it fits.
            reach = ((size - window[:, None]) / 2).clamp_min(0)
            centre = torch.minimum(torch.maximum(centre, size / 2 - reach), size / 2 + reach)
            flip = torch.where(draw[4] < 0.5, -1.0, 1.0)
        steps = (torch.arange(side, device=device) + 0.5) / side - 0.5
        y = (centre[:, :1] + steps * window[:, None])[:, :, None].expand(-1, -1, side)
        x = (centre[:, 1:] + steps * (flip * window)[:, None])[:, None, :].expand(-1, side, -1)
        grid = torch.stack([x, y], dim=-1) / padded * 2 - 1
        images = F.grid_sample(self.images[index].float() / 255, grid, align_corners=False)
        # Counted from 1, so that the zeros outside the padded square mean IGNORE too.
        stored = torch.where(self.targets[index] == IGNORE, 0, self.targets[index].float() + 1)
        targets = F.grid_sample(stored[:, None], grid, mode="nearest", align_corners=False)[:, 0].long() - 1
        return images, torch.where(targets < 0, IGNORE, targets)


def recolour(images: Tensor) -> Tensor:
    """Random gain, offset and mixing of the channels, and now and then grey: (B, 3, H, W) in [0, 1]."""
    draw = torch.rand(len(images), 15, device=images.device)
    mix = torch.diag_embed(1 + 0.5 * (draw[:, :1] - 0.5) + 0.3 * (draw[:, 1:4] - 0.5))
    mix = mix + 0.2 * (draw[:, 6:15].unflatten(1, (3, 3)) - 0.5)
    mix = torch.where(draw[:, 5, None, None] < 0.1, torch.full_like(mix, 1 / 3), mix)
    offset = 0.3 * (draw[:, 4, None, None, None] - 0.5)
    return (torch.einsum("bij,bjhw->bihw", mix, images - 0.5) + 0.5 + offset).clamp(0, 1)
