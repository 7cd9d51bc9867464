"""Result: what a prediction says about one image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image

from fasteomt.draw import draw_overlay, mask_colours
from fasteomt.errors import InputError, need

if TYPE_CHECKING:
    from fasteomt.picture import Picture


@dataclass(frozen=True)
class Result:
    """The mask of one image and what follows from it.

    `mask`: (H, W) class ids of the data set, in the model's `id_dtype`; `names`: id -> class name, of
    every class; `areas`: id -> pixels, of every class; `confidence`: id -> mean class probability over the
    pixels predicted as it, of the classes that occur; `pts`: seconds, for frames of a stream.
    """

    mask: np.ndarray
    names: dict[int, str]
    areas: dict[int, int]
    confidence: dict[int, float]
    pts: float | None = None

    def polygons(self, class_id: int) -> list[np.ndarray]:
        """Outer outlines of a class's regions, each (N, 2) int32 x, y; holes are left out.

        Raises:
            InputError: the model has no such class.
        """
        self._check(class_id)
        region = (self.mask == class_id).astype(np.uint8)
        contours, _ = cv2.findContours(region, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        return [contour[:, 0, :] for contour in contours]

    def plot(self, image: Picture | None = None) -> Image.Image:
        """The mask in colours, over the image if given; class 0 of the list stays clear.

        Args:
            image: any kind that `Predictor.predict` takes, of the mask's height and width.

        Raises:
            InputError: not an image of these kinds, or its size is not the mask's.
        """
        if image is None:
            return Image.fromarray(mask_colours(self.mask, tuple(self.names)))
        from fasteomt.picture import rgb_tensor  # torch, which only those who hold a model have loaded

        rgb = rgb_tensor(image).permute(1, 2, 0)
        if rgb.shape[:2] != self.mask.shape:
            raise InputError(
                f"plot: image is {tuple(rgb.shape[:2])}, mask is {self.mask.shape}: give the same image"
            )
        if rgb.is_floating_point():
            rgb = (rgb * 255).round().clamp(0, 255).byte()
        pixels = np.ascontiguousarray(rgb.cpu().numpy())
        return Image.fromarray(draw_overlay(pixels, self.mask, tuple(self.names)))

    def to_supervision(self) -> Any:
        """`supervision.Detections`, one a class that occurs, with masks, boxes, ids and names.

        Raises:
            UnsupportedError: the package 'supervision' is not installed.
        """
        sv = need("supervision", extra="supervision")
        present = [i for i, area in self.areas.items() if area > 0]
        masks = np.stack([self.mask == i for i in present])
        return sv.Detections(
            xyxy=sv.mask_to_xyxy(masks).astype(np.float32),
            mask=masks,
            class_id=np.array(present, dtype=int),
            confidence=np.array([self.confidence[i] for i in present], dtype=np.float32),
            data={"class_name": np.array([self.names[i] for i in present])},
        )

    def _check(self, class_id: int) -> None:
        if class_id not in self.names:
            raise InputError(f"no class with id {class_id}: the model has {self.names}")
