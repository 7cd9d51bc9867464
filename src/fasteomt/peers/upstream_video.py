"""`upstream_script` and `upstream_predict`: one video frame through unmodified LightlyTrain, stage by stage.

The stages are `prep` (frame to network input), `model` and `post` (network output to a mask on the host).
In `upstream_predict`, `model` is all of `predict`, and `post` the copy of the mask. On a GPU both run the
network under BF16 autocast, as LightlyTrain's users do; on a CPU in fp32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

STAGES = ("prep", "model", "post")


@dataclass(frozen=True)
class Segmented:
    """A frame (H, W, 3) uint8 RGB, its mask (H, W) of data set ids, and by id the mean class probability over
    the pixels predicted as it (empty where upstream gives none)."""

    rgb: np.ndarray
    mask: np.ndarray
    confidence: dict[int, float]


@dataclass(frozen=True)
class Mode:
    """`segment(model, device, bgr, mark)` takes a (H, W, 3) uint8 BGR frame, as OpenCV decodes it, and calls
    `mark()` at the end of each of the `STAGES`."""

    summary: str
    segment: Callable[[Any, torch.device, np.ndarray, Callable[[], None]], Segmented]


def segment_timed(
    mode: str, model: Any, device: torch.device, bgr: np.ndarray
) -> tuple[Segmented, dict[str, float]]:
    """One frame, and the milliseconds of each of the `STAGES`: host time, the GPU synchronised at each end.

    Args:
        mode: one of `MODES`. model: what `lightly_train.load_model` returned, on `device`.
        bgr: (H, W, 3) uint8.
    """
    synchronize(device)
    marks = [time.perf_counter()]

    def mark() -> None:
        synchronize(device)
        marks.append(time.perf_counter())

    segmented = MODES[mode].segment(model, device, bgr, mark)
    spans = zip(STAGES, marks[:-1], marks[1:], strict=True)
    return segmented, {stage: 1000 * (after - before) for stage, before, after in spans}


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def upstream_script(model: Any, device: torch.device, bgr: np.ndarray, mark: Callable[[], None]) -> Segmented:
    """What a straightforward script does: class scores of the whole frame to the host, then NumPy."""
    rgb = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    tensor, meta = model.preprocess_image(Image.fromarray(rgb))
    crops = model.preprocess_batch([tensor])
    mark()
    with _autocast(device):
        mask_logits, class_logits = model.forward_backend(crops)
    mark()
    crop_scores = model.to_per_pixel_logits_semantic(mask_logits.float(), class_logits.float())
    resized = (meta["resized_h"], meta["resized_w"])
    scores = model.untile(crop_logits=crop_scores, origins=meta["origins"], image_sizes=[resized])[0]
    # The last channel is "no object".
    full = (meta["orig_h"], meta["orig_w"])
    maps = F.interpolate(scores[None, :-1], full, mode="bilinear")[0].cpu().numpy()
    index = maps.argmax(axis=0)
    probability = maps.max(axis=0) / np.maximum(maps.sum(axis=0), np.finfo(np.float32).tiny)
    ids = list(model.classes)
    confidence = {i: float(probability[index == k].mean()) for k, i in enumerate(ids) if (index == k).any()}
    mask = np.array(ids)[index]
    mark()
    return Segmented(rgb, mask, confidence)


@torch.no_grad()
def upstream_predict(
    model: Any, device: torch.device, bgr: np.ndarray, mark: Callable[[], None]
) -> Segmented:
    """LightlyTrain's own `predict` of the frame; it gives no confidence."""
    rgb = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    image = Image.fromarray(rgb)
    mark()
    with _autocast(device):
        found = model.predict(image)
    mark()
    mask = found.cpu().numpy()
    mark()
    return Segmented(rgb, mask, {})


def _autocast(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


MODES = {
    "upstream_script": Mode(
        "LightlyTrain frame by frame, BF16 autocast on a GPU; full-size class scores copied to the host, "
        "argmax in NumPy",
        upstream_script,
    ),
    "upstream_predict": Mode(
        "LightlyTrain's predict() frame by frame, BF16 autocast on a GPU; the mask copied to the host",
        upstream_predict,
    ),
}
