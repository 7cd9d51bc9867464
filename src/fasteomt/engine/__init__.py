"""A plan bound to weights and a device."""

from fasteomt.engine.engine import Engine, resolve_device

__all__ = ["Engine", "resolve_device"]
