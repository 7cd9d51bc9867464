"""Rows of results.json that tell where the time on the GPU goes: of frames, training steps and networks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from fasteomt.bench.profile import Profile, module_sites, profile_call, profile_sites, site_range
from fasteomt.bench.results import Measured
from fasteomt.bench.rows import looped
from fasteomt.checkpoint import Checkpoint
from fasteomt.engine import Engine
from fasteomt.errors import UnsupportedError
from fasteomt.ops.early import ordinary_launches
from fasteomt.ops.target import Target
from fasteomt.peers.training import load_training, photo_like
from fasteomt.peers.upstream import open_model
from fasteomt.peers.upstream_video import MODES
from fasteomt.stacks import Stack

BLOCK_NUMBER = re.compile(r"block\.\d+")


def profile_rows(
    checkpoint: Checkpoint, model: str, device: torch.device, mode: str, video: Path
) -> list[Measured]:
    """`kernel_us` of one frame on LightlyTrain's way through a video, by kind of site, and as a whole.

    The whole's note tells the kernels, how busy the GPU is and how often the host waits for it.
    """
    common: dict[str, Any] = {
        "model": model, "stack": mode, "plan": None, "metric": "kernel_us", "crops": None, "frames": 1,
        "batch": 1, "streams": 1, "by": "native",
    }  # fmt: skip
    opened, bgr = open_model(checkpoint, device), next(looped(video))
    try:
        profile = profile_sites(
            lambda: MODES[mode].segment(opened, device, bgr, lambda: None),
            module_sites(checkpoint.spec, opened), opened, device,
        )  # fmt: skip
    except UnsupportedError as error:
        return [Measured(**common, note=str(error))]
    return _by_kind(common, profile)


def training_profile_rows(
    checkpoint: Checkpoint, model: str, device: torch.device, name: str, *, batch: int
) -> list[Measured]:
    """`kernel_us` of one step of a training baseline, as `profile_rows`; the loss with its matching and the
    optimizer are kinds of their own, and backward passes are told apart."""
    common: dict[str, Any] = {
        "model": model, "stack": name, "plan": None, "metric": "kernel_us", "crops": None, "frames": None,
        "batch": batch, "streams": None, "by": "native",
    }  # fmt: skip
    try:
        peer = load_training(name, checkpoint, device, photo_like(checkpoint.spec, batch, seed=0))
        # Methods among the sites belong to prediction.
        marks = {
            f"model.{name}": site
            for name, site in module_sites(checkpoint.spec, peer.model).items()
            if name in dict(peer.model.named_modules())
        }
        profile = profile_sites(peer.step, marks | {"criterion": "loss"}, peer.module, device)
    except UnsupportedError as error:
        return [Measured(**common, note=str(error))]
    return _by_kind(common, profile)


def stack_profile_rows(
    checkpoint: Checkpoint, model: str, device: torch.device, stack: Stack, *, crops: int
) -> list[Measured]:
    """`kernel_us` of a stack's network, as `profile_rows`, launched kernel by kernel, so that kernels are
    found at their groups, and none early: one that starts early seems to take as long as it waits. The
    whole's note tells how busy the GPU is in a replay too.
    """
    spec = checkpoint.spec
    common: dict[str, Any] = {
        "model": model, "stack": stack.name, "plan": stack.plan(spec, Target.of(device)).hash,
        "metric": "kernel_us", "crops": crops, "frames": 1, "batch": 1, "streams": 1, "by": "native",
    }  # fmt: skip
    try:
        engine = Engine(spec, checkpoint.weights, stack, device)
        program = engine.program(crops)
        with ordinary_launches():
            profile = profile_call(
                lambda: program.run(lambda group: site_range("+".join(group.sites))), device
            )
        replay = profile_call(lambda: engine.network(program.crops), device)
    except UnsupportedError as error:
        return [Measured(**common, note=str(error))]
    rows = _by_kind(common, profile)
    a_block = sum(site.kernels for site in profile.sites if site.site.startswith("block.1."))
    note = (
        f"{rows[0].note}; {a_block} kernels a block; as `network` runs it, GPU busy {replay.busy_share:.0%}"
    )
    return [rows[0].model_copy(update={"note": note}), *rows[1:]]


def _by_kind(common: dict[str, Any], profile: Profile) -> list[Measured]:
    """A row for the whole profile, then one for each kind of site and pass."""
    kinds: dict[str, tuple[float, int]] = {}
    for site in profile.sites:
        kind = BLOCK_NUMBER.sub("block.*", site.site)
        if site.phase != "forward":
            kind = f"{kind} {site.phase}"
        spent, kernels = kinds.get(kind, (0.0, 0))
        kinds[kind] = spent + site.kernel_us, kernels + site.kernels
    kinds["outside any site"] = profile.unattributed_us, profile.unattributed_kernels
    waits = ", ".join(f"{count} {name}" for name, count in profile.host_waits.items()) or "none"
    note = f"{profile.kernels} kernels, GPU busy {profile.busy_share:.0%}, host waits: {waits}"
    rows = [_once(common | {"note": note}, profile.kernel_us)]
    for kind, (spent, kernels) in kinds.items():
        if spent > 0:
            rows.append(_once(common | {"phase": kind, "note": f"{kernels} kernels"}, spent))
    return rows


def _once(fields: dict[str, Any], value: float) -> Measured:
    return Measured(**fields, median=value, min=value, max=value, n=1)
