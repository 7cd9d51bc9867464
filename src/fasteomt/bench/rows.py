"""From a checkpoint to rows of results.json: the model segment, whole videos and training steps, timed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import torch

from fasteomt.bench.ceilings import Ceilings
from fasteomt.bench.costs import site_costs
from fasteomt.bench.floors import floor_table
from fasteomt.bench.metrics import METRICS, PEERS
from fasteomt.bench.results import Measured
from fasteomt.bench.timer import Candidate, Timing, measure, rotations
from fasteomt.checkpoint import Checkpoint
from fasteomt.engine import Engine
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.ops.target import Target
from fasteomt.peers.model import load_peer
from fasteomt.peers.training import load_training, photo_like
from fasteomt.peers.upstream import open_model
from fasteomt.peers.upstream_video import STAGES, segment_timed
from fasteomt.plan import Plan, plan_by_op
from fasteomt.stacks import Stack, get_stack

logger = logging.getLogger(__name__)

MIB = 1 << 20


class PeakMemory:
    """As a context manager: `mib`, the device memory in use at most within the block beyond that before it;
    None on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0
        self.mib: float | None = None

    def __enter__(self) -> PeakMemory:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            used = torch.cuda.max_memory_allocated(self._device) - self._before
            self.mib = max(used, 1) / MIB


def model_rows(
    checkpoint: Checkpoint,
    model: str,
    device: torch.device,
    subjects: Sequence[str | Stack],
    *,
    crops: int,
    baseline: str | None,
    ceilings: Ceilings | None,
    frames: int = 1,
    seconds: float = 1.0,
) -> list[Measured]:
    """`model_ms` of stacks and peers on the same random crops, taking turns in one run.

    On a GPU by CUDA events around back-to-back calls, which is how users of compiled models call them.

    Args:
        model: the name that rows carry. subjects: stacks, or names of stacks or peers. baseline: the name of
            one of them, which the others are compared with, or None.
        crops: of a frame; `frames` frames are computed together, and times are of all of them.
        ceilings: for floors; None leaves them out.
        seconds: timed for each candidate and round.

    Returns:
        A row for each subject; what this machine can't run gets a row with a note and no time.
    """
    spec = checkpoint.spec
    size = (crops * frames, 3, spec.crop_size, spec.crop_size)
    generator = torch.Generator(device).manual_seed(0)
    sample = torch.randn(size, device=device, generator=generator)
    copies = 1
    if device.type == "cuda":
        copies = rotations(sample.nbytes, torch.cuda.get_device_properties(device).L2_cache_size)
    inputs = [
        (sample,),
        *((torch.randn(size, device=device, generator=generator),) for _ in range(copies - 1)),
    ]
    candidates, rows, ready = [], [], {}
    for subject in subjects:
        peer = isinstance(subject, str) and subject in PEERS
        stack = None if peer else subject if isinstance(subject, Stack) else get_stack(subject)
        name = str(subject) if stack is None else stack.name
        plan = None if stack is None else stack.plan(spec, Target.of(device))
        row = Measured(
            model=model, stack=name, plan=None if plan is None else plan.hash, metric="model_ms",
            crops=crops, frames=frames, batch=1, streams=1, by="native",
            floor=None if ceilings is None else 1000 * model_floor(spec, plan, crops * frames, ceilings),
            baseline=None if name == baseline else baseline,
        )  # fmt: skip
        rows.append(row)
        try:
            with PeakMemory(device) as peak:
                if stack is None:
                    call = load_peer(name, checkpoint, device, sample).call
                else:
                    call = Engine(spec, checkpoint.weights, stack, device).network
                call(sample)
        except UnsupportedError as error:
            rows[-1] = row.model_copy(update={"note": str(error)})
            continue
        logger.info("%s %s: ready", model, name)
        candidates.append(Candidate(name, call, inputs))
        ready[name] = peak.mib
    timings = measure(candidates, device, mode="calls", seconds=seconds) if candidates else {}
    for i, row in enumerate(rows):
        if row.stack in timings:
            measured = _times(timings[row.stack], 1000.0) | {"peak_mib": ready[row.stack]}
            rows[i] = row.model_copy(update=measured)
            logger.info("%s %s: %s", model, row.stack, units(rows[i]))
    return rows


def model_floor(spec: ModelSpec, plan: Plan | None, crops: int, ceilings: Ceilings) -> float:
    """Seconds that the model segment's arithmetic takes at best, in a plan's formats, or all in BF16 where
    there is none. Memory doesn't count: kernels that compute several sites at once may go below its
    floor, and a row's floor must hold for every implementation."""
    plan = plan or plan_by_op(spec, "reference", lambda op: "bf16")
    return floor_table(site_costs(spec, plan, crops), ceilings).without_frame().arithmetic_s


def _times(timing: Timing | None, scale: float) -> dict[str, Any]:
    """Fields of a row from a timing, its seconds times `scale`."""
    if timing is None:
        return {}
    state = timing.telemetry
    return {
        "median": timing.median * scale, "min": timing.min * scale, "max": timing.max * scale, "n": timing.n,
        "clock_mhz": state and state.sm_mhz, "watts": state and state.watts,
        "celsius": state and state.celsius,
    }  # fmt: skip


def training_rows(
    checkpoint: Checkpoint,
    model: str,
    device: torch.device,
    names: Sequence[str],
    *,
    batch: int,
    baseline: str | None,
    seconds: float = 5.0,
) -> list[Measured]:
    """`train_img_s` of training baselines, one after the other, since several don't fit into memory."""
    images = photo_like(checkpoint.spec, batch, seed=0)
    rows = []
    for name in names:
        row: dict[str, Any] = {
            "model": model, "stack": name, "plan": None, "metric": "train_img_s", "crops": None,
            "frames": None, "batch": batch, "streams": None, "by": "native",
            "baseline": None if name == baseline else baseline,
        }  # fmt: skip
        try:
            with PeakMemory(device) as peak:
                step = load_training(name, checkpoint, device, images).step
                timing = measure([Candidate(name, step, [()])], device, mode="calls", seconds=seconds)[name]
        except UnsupportedError as error:
            rows.append(Measured(**row, note=str(error)))
            continue
        times = _times(timing, 1.0)
        rates = {"median": batch / timing.median, "min": batch / timing.max, "max": batch / timing.min}
        rows.append(Measured(**row | times | rates, peak_mib=peak.mib))
        logger.info("%s %s: %.1f img/s", model, name, rates["median"])
    return rows


def video_rows(
    checkpoint: Checkpoint,
    model: str,
    device: torch.device,
    mode: str,
    video: Path,
    *,
    frames: int,
    rounds: int,
) -> list[Measured]:
    """`video_fps` of LightlyTrain's way through a video, decoding included, and `frame_ms` of its stages.

    Args:
        mode: 'upstream_script' or 'upstream_predict'. frames: in each round; the video is looped for them.

    Raises:
        InputError: not a video.
    """
    opened = open_model(checkpoint, device)
    spans: list[dict[str, list[float]]] = []
    rates = []
    for number in range(rounds + 1):
        stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
        started = time.perf_counter()
        # The first round warms up.
        for bgr in islice(looped(video), frames if number else min(frames, 20)):
            _, times = segment_timed(mode, opened, device, bgr)
            for stage, milliseconds in times.items():
                stages[stage].append(milliseconds)
        if number:
            rates.append(frames / (time.perf_counter() - started))
            spans.append(stages)
            logger.info("%s %s: %.1f fps", model, mode, rates[-1])
    common: dict[str, Any] = {
        "model": model, "stack": mode, "plan": None, "crops": None, "frames": 1, "batch": 1, "streams": 1,
        "by": "native", "n": rounds,
    }  # fmt: skip
    rows = [_spread(common | {"metric": "video_fps"}, rates)]
    for stage in STAGES:
        rows.append(
            _spread(common | {"metric": "frame_ms", "phase": stage}, [median(one[stage]) for one in spans])
        )
    whole = [median(map(sum, zip(*(one[stage] for stage in STAGES), strict=True))) for one in spans]
    rows.append(_spread(common | {"metric": "frame_ms"}, whole))
    return rows


def _spread(fields: dict[str, Any], values: Sequence[float]) -> Measured:
    return Measured(**fields, median=median(values), min=min(values), max=max(values))


def looped(video: Path) -> Iterator[np.ndarray]:
    """A video's frames, (H, W, 3) uint8 BGR as OpenCV decodes them, over and over.

    Raises:
        InputError: it has no frame that can be decoded.
    """
    while True:
        capture = cv2.VideoCapture(str(video))
        found = False
        while True:
            more, frame = capture.read()
            if not more:
                break
            found = True
            yield frame
        capture.release()
        if not found:
            raise InputError(f"{video}: no frame can be decoded: check the file")


def units(row: Measured) -> str:
    """The row's figure as people read it, such as '4.92 ms'."""
    return "-" if row.median is None else f"{row.median:.4g} {METRICS[row.metric].unit}"
