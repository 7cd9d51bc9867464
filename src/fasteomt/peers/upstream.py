"""`upstream_predict`: LightlyTrain's own `predict`, unmodified, in fp32, one image at a time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fasteomt.checkpoint import Checkpoint, resolve, write_export
from fasteomt.compat.lightly import silence_events
from fasteomt.engine import resolve_device
from fasteomt.errors import CheckpointError, need
from fasteomt.result import Result

NAME = "upstream_predict"


class UpstreamPredict:
    """A LightlyTrain model behind `predict_rgb`, with the attributes of `Predictor` that a report needs."""

    def __init__(self, model: Any, checkpoint: Checkpoint, device: torch.device) -> None:
        self.spec = checkpoint.spec
        self.source = checkpoint.source
        self.sha256 = checkpoint.sha256
        self.device = device
        self._model = model

    def predict_rgb(self, frame: np.ndarray) -> Result:
        """Segment one (H, W, 3) uint8 RGB frame; upstream gives no confidence, so there is none."""
        image = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)
        mask = self._model.predict(image).cpu().numpy().astype(self.spec.id_dtype)
        areas = {class_id: int(np.count_nonzero(mask == class_id)) for class_id in self.spec.class_ids}
        return Result(mask, self.spec.names, areas, confidence={})


def load_upstream(model: str | Path, device: str = "auto") -> UpstreamPredict:
    """Open a model with `lightly_train.load_model`, as `open_model` does.

    Names (random weights, the shipped model) mean what they mean elsewhere.

    Raises:
        CheckpointError: not a model, or one that upstream can't open. UnsupportedError: lightly_train isn't
            installed.
    """
    checkpoint = resolve(model)
    where = resolve_device(device)
    return UpstreamPredict(open_model(checkpoint, where), checkpoint, where)


def open_model(checkpoint: Checkpoint, device: torch.device) -> Any:
    """A checkpoint as LightlyTrain's own fp32 model on `device`, in evaluation mode.

    The file was read by our own reader first: upstream unpickles without restrictions, so it only sees files
    that hold nothing but data. Upstream's usage events are switched off for the process.

    Raises:
        CheckpointError: upstream can't open it. UnsupportedError: lightly_train isn't installed.
    """
    silence_events()
    lightly_train = need("lightly_train", extra="train")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(checkpoint.source)
        if not path.is_file():
            path = write_export(Path(folder) / "model.pt", checkpoint.spec, checkpoint.weights)
        try:
            opened = lightly_train.load_model(path, device=device)
        except Exception as error:  # whatever upstream raises for a file that isn't its own
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"{path}: LightlyTrain can't open it ({type(error).__name__}: {reason}): give its own export"
            ) from error
    return opened.eval()
