"""Several processes that train one model, one for each GPU, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from fasteomt.errors import InputError


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple[int, int]]:
    """Rank and number of processes, joined when started by torchrun, else (0, 1).

    Raises:
        InputError: the environment says that there are several, but not how they meet.
    """
    if "RANK" not in os.environ:
        yield 0, 1
        return
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    except (ValueError, RuntimeError) as error:
        raise InputError(f"RANK is set but processes can't join ({error}): start with torchrun") from None
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def average(grads: list[Tensor]) -> None:
    """Replace gradients by their mean over all processes, in place; nothing to do for one process."""
    if not dist.is_initialized():
        return
    flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    dist.all_reduce(flat)
    parts = flat.split([grad.numel() for grad in grads])
    torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)])


def agreed(seconds: float) -> float:
    """The first process's clock: all must take the same number of steps. Waits for the device's work."""
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # the host must not run ahead of the clock
        return seconds
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = torch.tensor(seconds, device=device)
    dist.broadcast(shared, 0)
    return shared.item()
