"""Pre-train DINOv3 + EoMT from scratch, fast: query k predicts class k, so nothing needs to be matched.

    python scripts/pretrain_eomt.py --data-root DATA_ROOT --model vitt16 --seconds 240 --out pretrained.pt

LightlyTrain's loop matches queries to masks image by image on the host and loads images on the CPU; a small
backbone that has everything to learn then waits for most of the time. Here the data set lies in GPU memory
and is augmented there, the assignment is fixed, and most steps see windows of half a crop around
pixels of each class, with the rotary positions that such a window has within a whole crop. It learns a
valid solution of the matching loss, so that loop can go on from it:
`train_dinov3_eomt_head.py --model pretrained.pt`.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteomt.checkpoint import read, write_export
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.data.dataset import Sample, SegmentationSet, open_dataset
from fasteomt.data.processes import map_in_processes
from fasteomt.engine import resolve_device
from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt, rope_at
from fasteomt.model.spec import ModelSpec
from fasteomt.model.tiling import class_scores

NAME = "pretrain_eomt"
IGNORE = 255
POINTS = 32  # window centres kept of each image
ZOOM = (0.7, 1.6)  # of a window, against the scale that prediction would use; log-uniform
WARM_UP_STEPS = 300
WHOLE_EVERY = 3  # every third step sees whole crops, as prediction does
WHOLE_SHARE = 0.2  # and at the end, for this share of the time, every step
LAYER_SCALE = 0.2  # DINOv3's 1e-5 keeps random blocks asleep for hundreds of steps
ROPE_RESCALE = 2.0  # upstream's random scale of the coordinates in training, log-uniform in [1/2, 2]
NO_OBJECT_WEIGHT = 0.1
MASK_WEIGHT, DICE_WEIGHT, CLASS_WEIGHT = 5.0, 5.0, 2.0  # EoMT's

logger = logging.getLogger(NAME)


@dataclass(frozen=True)
class Resident:
    """A data set in device memory, padded to squares of side S.

    images (N, 3, S, S) uint8 RGB; targets (N, S, S) uint8 class index, IGNORE outside the image and where the
    data set says so; sizes (N, 2) height, width; points (N, POINTS, 2) pixels y, x, of each class as often.
    """

    images: Tensor
    targets: Tensor
    sizes: Tensor
    points: Tensor

    @classmethod
    def load(cls, data: SegmentationSet, device: torch.device, workers: int) -> Resident:
        sizes = torch.tensor([sample.size for sample in data])
        side = int(sizes.max())
        images = torch.zeros(len(data), 3, side, side, dtype=torch.uint8, device=device)
        targets = torch.full((len(data), side, side), IGNORE, dtype=torch.uint8, device=device)
        index_of = np.full(65536, IGNORE, dtype=np.uint8)
        index_of[list(data.classes)] = np.arange(len(data.classes))
        points = []
        for i, (rgb, mask, chosen) in enumerate(map_in_processes(_read, list(data), workers)):
            height, width = mask.shape
            images[i, :, :height, :width] = torch.from_numpy(rgb).to(device).permute(2, 0, 1)
            targets[i, :height, :width] = torch.from_numpy(index_of[mask]).to(device)
            points.append(torch.from_numpy(chosen))
        return cls(images, targets, sizes.to(device).float(), torch.stack(points).to(device).float())

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


def _read(sample: Sample) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rgb, mask = sample.rgb(), sample.mask()
    rng = np.random.default_rng(mask.size)
    present = [np.flatnonzero(mask == i) for i in np.unique(mask)]
    flat = np.array([rng.choice(present[k % len(present)]) for k in range(POINTS)])
    return rgb, mask, np.stack(np.unravel_index(flat, mask.shape), axis=1)


def recolour(images: Tensor) -> Tensor:
    """Random gain and offset of each channel and of all, and now and then grey."""
    draw = torch.rand(len(images), 8, device=images.device)
    gain = 1 + 0.5 * (draw[:, :1] - 0.5) + 0.3 * (draw[:, 1:4] - 0.5)
    offset = 0.3 * (draw[:, 4:5] - 0.5)
    grey = draw[:, 7] < 0.1
    images = torch.where(grey[:, None, None, None], images.mean(dim=1, keepdim=True), images)
    return ((images - 0.5) * gain[:, :, None, None] + 0.5 + offset[:, :, None, None]).clamp(0, 1)


def initialise(model: Eomt) -> None:
    """Small random weights that leave every block awake."""
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


class Windowed(nn.Module):
    """EoMT on windows that are parts of a crop."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.eomt = Eomt(spec)
        initialise(self.eomt)
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


def fixed_assignment_loss(masks: Tensor, classes: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """EoMT's mask, dice and class loss with query k assigned to class k, the others to "no object".

    Args:
        masks: (B, Q, s, s) logits; classes: (B, Q, K + 1) logits; targets: (B, S, S) class index or IGNORE.
    """
    cell = targets.shape[-1] // masks.shape[-1]
    one_hot = torch.stack([(targets == k).float() for k in range(num_classes)], dim=1)
    share = F.avg_pool2d(one_hot, cell)
    valid = share.sum(dim=1, keepdim=True)
    present = share.sum(dim=(2, 3)) > 0
    logits = masks[:, :num_classes].float()
    bce = F.binary_cross_entropy_with_logits(logits, share, reduction="none") * valid
    bce = bce.sum(dim=(2, 3)) / valid.sum(dim=(2, 3)).clamp_min(1)
    p = logits.sigmoid() * valid
    both, either = (p * share).sum(dim=(2, 3)), (p + share).sum(dim=(2, 3))
    dice = 1 - (2 * both + 1) / (either + 1)
    count = present.sum().clamp_min(1)
    wanted = torch.full(classes.shape[:2], num_classes, device=classes.device)
    each = torch.arange(num_classes, device=classes.device).expand_as(present)
    wanted[:, :num_classes] = torch.where(present, each, num_classes)
    weight = torch.ones(num_classes + 1, device=classes.device)
    weight[-1] = NO_OBJECT_WEIGHT
    class_loss = F.cross_entropy(classes.float().flatten(0, 1), wanted.flatten(), weight=weight)
    mask_loss = ((MASK_WEIGHT * bce + DICE_WEIGHT * dice) * present).sum() / count
    return mask_loss + CLASS_WEIGHT * class_loss


@torch.no_grad()
def intersection_over_union(model: Windowed, data: Resident, batch: int) -> list[float]:
    """IoU of each class over the middle windows, from the scores that prediction uses."""
    spec = model.eomt.spec
    device = data.images.device
    rope = rope_of_window(model.eomt, spec.grid_size, random=False)
    counts = torch.zeros(2, len(spec.class_ids), device=device)
    for index in torch.arange(len(data.sizes), device=device).split(batch):
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
        optimizer: torch.optim.Optimizer,
        data: Resident,
        batch: int,
        share: float,
    ) -> None:
        self.model, self.forward, self.optimizer, self.data = model, forward, optimizer, data
        self.batch, self.share = batch, share
        self.side = int(model.eomt.spec.crop_size * share)
        self.graph: torch.cuda.CUDAGraph | None = None
        if data.images.is_cuda:
            self._capture()

    def __call__(self) -> Tensor:
        """Returns the loss, a scalar on the device that the next call overwrites."""
        if self.graph is None:
            return self._run()
        self.graph.replay()
        return self.loss

    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # torch moves the random generator on at each replay, so the draws inside stay fresh.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = self._run()

    def _run(self) -> Tensor:
        spec, device = self.model.eomt.spec, self.data.images.device
        index = torch.randint(len(self.data.images), (self.batch,), device=device)
        images, targets = self.data.windows(index, self.side, self.share, random=True)
        rope = rope_of_window(self.model.eomt, self.side // spec.patch_size, random=True)
        # Casts cached by autocast would outlive the graph that holds them.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            masks, classes = self.forward(recolour(images), *rope)
        loss = fixed_assignment_loss(masks, classes, targets, len(spec.class_ids))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def optimizer_of(model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """AdamW, decay on matrices alone, with a learning rate on the device that starts at zero."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    rate = torch.zeros((), device=device)
    cuda = device.type == "cuda"
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=cuda, capturable=cuda)


def pretrain(args: argparse.Namespace) -> None:
    if args.out.exists():
        raise InputError(f"{args.out} exists: choose another --out")
    device = resolve_device(args.device)
    train, valid = open_dataset(args.data_root, "train"), open_dataset(args.data_root, "valid")
    if len(train.classes) > 200 or min(train.classes) < 0 or max(train.classes) > 65535:
        raise InputError(f"{args.data_root}: needs at most 200 classes with ids 0 to 65535")
    spec = ModelSpec.from_name(
        args.model,
        class_ids=tuple(train.classes),
        class_names=tuple(train.classes.values()),
        image_size=(args.image_size, args.image_size),
    )
    torch.manual_seed(args.seed)
    started = time.monotonic()
    data, held = (Resident.load(split, device, args.workers) for split in (train, valid))
    logger.info("%d + %d images in memory after %.0f s", len(train), len(valid), time.monotonic() - started)

    model = Windowed(spec)
    if args.start:
        model.eomt.load_state_dict(start_weights(args.start, spec))
    model = model.to(device)
    optimizer = optimizer_of(model, device)
    forward = torch.compile(model, dynamic=False) if args.compile else model
    windows = Step(model, forward, optimizer, data, args.batch_size, 0.5)
    whole_crops = Step(model, forward, optimizer, data, max(1, args.batch_size // 4), 1.0)
    begin, done, seen = time.monotonic(), 0, 0
    logger.info("ready after %.0f s", begin - started)
    while (elapsed := time.monotonic() - begin) < args.seconds:
        rate = 0.5 * (1 + math.cos(math.pi * elapsed / args.seconds)) * min(1.0, (done + 1) / WARM_UP_STEPS)
        for group in optimizer.param_groups:
            group["lr"].fill_(args.learning_rate * rate)
        whole = done % WHOLE_EVERY == 0 or elapsed > (1 - WHOLE_SHARE) * args.seconds
        step = whole_crops if whole else windows
        loss = step()
        done, seen = done + 1, seen + step.batch
        if done % args.log_every == 0:
            # Reading the loss also keeps the host from running ahead of the clock.
            value, speed = loss.item(), seen / (time.monotonic() - begin)
            logger.info("step %d  loss %.4f  %.0f img/s  %.0f s", done, value, speed, elapsed)
    with torch.autocast(device.type, torch.bfloat16):
        scores = intersection_over_union(model.eval(), held, max(1, args.batch_size // 4))
    named = ", ".join(f"{n} {v:.4f}" for n, v in zip(spec.class_names, scores, strict=True))
    logger.info("%d steps, %d windows; IoU on the middle of valid images: %s", done, seen, named)
    write_export(args.out, spec, {k: v.cpu() for k, v in model.eomt.state_dict().items()})


def start_weights(path: Path, spec: ModelSpec) -> dict[str, Tensor]:
    """Weights of an earlier run, widened to fp32.

    Raises:
        InputError: it is another model.
    """
    found = read(path)
    if found.spec != spec:
        raise InputError(
            f"{path}: is {found.spec.name} with classes {found.spec.names}, not what is trained here"
        )
    return {name: weight.float() for name, weight in found.weights.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    p = OneLineParser(prog=NAME, description="Pre-train DINOv3 + EoMT with a fixed assignment.")
    p.add_argument("--data-root", type=Path, required=True, help="folder that holds train/ and valid/")
    p.add_argument("--model", default="vitt16", help="architecture")
    p.add_argument("--start", type=Path, metavar="EXPORT", help="go on from the weights of an earlier run")
    p.add_argument("--out", type=Path, required=True, help="the export to write; must not exist")
    p.add_argument("--seconds", type=float, default=240, help="length of the training, schedule included")
    p.add_argument(
        "--batch-size", type=int, default=64, help="windows a step; whole crops are a quarter as many"
    )
    p.add_argument("--image-size", type=int, default=512, help="side of a whole crop, pixels")
    p.add_argument("--learning-rate", type=float, default=1e-3)
    p.add_argument("--compile", action="store_true", help="torch.compile the model: pays from a minute on")
    p.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes that read the data set"
    )
    p.add_argument("--device", default="auto")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log-every", type=int, default=100, metavar="STEPS")
    args = p.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return exit_code(NAME, lambda: pretrain(args))


if __name__ == "__main__":
    sys.exit(main())
