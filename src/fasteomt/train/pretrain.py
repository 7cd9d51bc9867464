"""Pre-training of DINOv3 + EoMT from scratch, fast: query k predicts class k, so nothing needs to be matched.

Most steps see windows of half a crop around pixels of each class, with the rotary positions that such a
window has within a whole crop; the others see whole crops. A step is recorded once as a CUDA graph and
replayed. It learns a valid solution of EoMT's matching loss, so that LightlyTrain's loop can go on from it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fasteomt.data.fresh import FreshHeads
from fasteomt.engine.graph import capture
from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt, rope_at
from fasteomt.model.spec import ModelSpec
from fasteomt.model.tiling import class_scores
from fasteomt.train.distributed import agreed, world_size
from fasteomt.train.fixed_assignment import fixed_assignment_loss
from fasteomt.train.optimizer import Optimizer
from fasteomt.train.resident import IGNORE, Resident, recolour

WARM_UP_STEPS = 300
ROUND = 24  # steps between two looks at the clock
WHOLE_EVERY = 3  # every third step sees whole crops, as prediction does
WHOLE_SHARE = 0.25  # and at the end, for this share of the time, every step
LAYER_SCALE = 0.2  # DINOv3's 1e-5 keeps random blocks asleep for hundreds of steps
ROPE_RESCALE = 2.0  # upstream's random scale of the coordinates in training, log-uniform in [1/2, 2]
FRESH_PER_ROUND = 96

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Course:
    """How long and how: `batch` windows a step on each GPU (a quarter as many whole crops), peak rate."""

    seconds: float
    batch: int
    learning_rate: float
    compile: bool
    log_every: int = 100


@dataclass(frozen=True)
class Work:
    """What a training did, on all GPUs together."""

    steps: int
    windows: int
    whole_crops: int
    seconds: float


def initialise(model: Eomt, massive: float = 0.0) -> None:
    """Small random weights that leave every block awake.

    Args:
        massive: if not 0, channel 0 of the register tokens starts this large. Nothing takes it off the
            residual stream again, so the trained model carries massive activations, as large models do.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            nn.init.constant_(parameter, LAYER_SCALE)
        elif "token" in name or "queries" in name:
            nn.init.normal_(parameter, std=0.02)
    if massive:
        with torch.no_grad():
            model.backbone.storage_tokens[..., 0] = massive


class Windowed(nn.Module):
    """EoMT on windows that are parts of a crop."""

    def __init__(self, spec: ModelSpec, massive: float = 0.0) -> None:
        super().__init__()
        self.eomt = Eomt(spec)
        initialise(self.eomt, massive)
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor([spec.mean, spec.std])[:, :, None, None], persistent=False)

    def forward(self, images: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, side, side) in [0, 1], RoPE tables of its patches -> mask logits, class logits."""
        spec, backbone = self.eomt.spec, self.eomt.backbone
        x = backbone.tokens((images - self.scale[0]) / self.scale[1])
        for i, block in enumerate(backbone.blocks):
            if i == spec.depth - spec.num_joint_blocks:
                x = torch.cat([self.eomt.queries.weight.expand(x.shape[0], -1, -1), x], dim=1)
            x = block(x, (sin, cos))
        grid = images.shape[-1] // spec.patch_size
        return self.eomt.head(backbone.norm(x), grid, grid)


def rope_of_window(model: Eomt, grid: int, *, random: bool) -> tuple[Tensor, Tensor]:
    """RoPE tables (grid^2, head_dim) of a window within a whole crop: the middle one, or one at a random
    place and with the coordinates randomly rescaled. All on the device, so that a graph can hold it."""
    whole, periods = model.spec.grid_size, model.backbone.rope_embed.periods
    places = whole - grid + 1
    start = torch.full((2, 1), places // 2, device=periods.device)
    if random:
        draw = torch.rand(3, device=periods.device)
        periods = periods / ROPE_RESCALE ** (2 * draw[0] - 1)
        start = (draw[1:, None] * places).floor()
    y, x = (torch.arange(grid, device=periods.device) + start + 0.5) / whole * 2 - 1
    return rope_at(periods, y, x)


@torch.no_grad()
def intersection_over_union(model: Windowed, data: Resident, batch: int) -> list[float]:
    """IoU of each class over the middle windows, from the scores that prediction uses."""
    spec = model.eomt.spec
    device = data.images.device
    rope = rope_of_window(model.eomt, spec.grid_size, random=False)
    counts = torch.zeros(2, len(spec.class_ids), device=device)
    for index in torch.arange(len(data), device=device).split(batch):
        images, targets = data.windows(index, spec.crop_size, 1.0, random=False)
        masks, classes = model(images, *rope)
        found = class_scores(masks.float(), classes.float(), spec.crop_size).argmax(dim=1)
        for k in range(len(spec.class_ids)):
            predicted, true = (found == k) & (targets != IGNORE), targets == k
            counts[0, k] += (predicted & true).sum()
            counts[1, k] += (predicted | true).sum()
    return (counts[0] / counts[1].clamp_min(1)).tolist()


class Step:
    """One optimizer step on fresh windows of one size. On a GPU it is recorded once and replayed: a model
    this small is done before the host has launched its kernels."""

    def __init__(
        self,
        model: Windowed,
        forward: Callable[..., tuple[Tensor, Tensor]],
        optimizer: Optimizer,
        data: Resident,
        batch: int,
        share: float,
    ) -> None:
        self.model, self.forward, self.optimizer, self.data = model, forward, optimizer, data
        self.batch, self.share = batch, share
        self.side = int(model.eomt.spec.crop_size * share)
        # torch moves the random generator on at each replay, so the draws inside stay fresh.
        self._step = capture(self._run).replay if data.images.is_cuda else self._run

    def __call__(self) -> Tensor:
        """Returns the loss, a scalar on the device that the next call overwrites."""
        return self._step()

    def _run(self) -> Tensor:
        spec, device = self.model.eomt.spec, self.data.images.device
        index = self.data.draw(self.batch)
        images, targets = self.data.windows(index, self.side, self.share, random=True)
        rope = rope_of_window(self.model.eomt, self.side // spec.patch_size, random=True)
        # Casts cached by autocast would outlive the graph that holds them.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            masks, classes = self.forward(recolour(images), *rope)
        loss = fixed_assignment_loss(masks, classes, targets, len(spec.class_ids))
        self.optimizer.step(loss)
        return loss.detach()


def train(
    model: Windowed, data: Resident, fresh: FreshHeads | None, course: Course, on_round: Callable[[], None]
) -> Work:
    """Train `model` in place for `course.seconds`; `fresh` images replace the oldest in `data` meanwhile.

    With torch.distributed initialised, every process trains on its own data and gradients are averaged.

    Args:
        on_round: called every `ROUND` steps.

    Raises:
        InputError: the loss is no longer finite; the weights are of no use then.
    """
    world = world_size()
    optimizer = Optimizer(model, data.images.device)
    forward = torch.compile(model, dynamic=False) if course.compile else model
    windows = Step(model, forward, optimizer, data, course.batch, 0.5)
    whole_crops = Step(model, forward, optimizer, data, max(1, course.batch // 4), 1.0)
    begin, done, counts = time.monotonic(), 0, {windows: 0, whole_crops: 0}
    # All processes follow the first one's clock: each must take the same number of steps.
    while (elapsed := agreed(time.monotonic() - begin)) < course.seconds:
        ramp = 0.5 * (1 + math.cos(math.pi * elapsed / course.seconds))
        optimizer.rate.fill_(course.learning_rate * ramp * min(1.0, (done + 1) / WARM_UP_STEPS))
        for i in range(ROUND):
            whole = i % WHOLE_EVERY == 0 or elapsed > (1 - WHOLE_SHARE) * course.seconds
            step = whole_crops if whole else windows
            loss = step()
            counts[step] += 1
        done += ROUND
        if not math.isfinite(loss.item()):
            raise InputError(f"the loss is {loss.item()} at step {done}: train with a lower --learning-rate")
        if fresh is not None:
            data.put(fresh.take(FRESH_PER_ROUND))
        if done // course.log_every != (done - ROUND) // course.log_every:
            value, now = loss.item(), time.monotonic() - begin
            message = "step %d  loss %.4f  %.1f ms a step  %d images  %.0f s"
            logger.info(message, done, value, 1000 * now / done, data.put_so_far, now)
        on_round()
    seen = {step: world * step.batch * count for step, count in counts.items()}
    return Work(done, seen[windows], seen[whole_crops], time.monotonic() - begin)
