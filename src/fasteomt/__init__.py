"""fasteomt: DINOv3 + EoMT semantic segmentation from LightlyTrain checkpoints, fast on one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fasteomt.acceleration import accelerate
    from fasteomt.predictor import Predictor, load
    from fasteomt.result import Result

__version__ = "0.1.0"
__all__ = ["Predictor", "Result", "__version__", "accelerate", "load"]

_HOMES = {"load": "predictor", "Predictor": "predictor", "Result": "result", "accelerate": "acceleration"}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: only what is used gets loaded.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"fasteomt.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fasteomt' has no attribute '{name}'")
