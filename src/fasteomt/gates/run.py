"""Run a stack beside the fp32 reference over a clip and judge it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fasteomt.capabilities import hardware_name
from fasteomt.checkpoint import Checkpoint
from fasteomt.engine.engine import MAX_CROPS_PER_BATCH
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.gates.clip import ClipStatistics
from fasteomt.gates.footage import Footage
from fasteomt.gates.limits import Limits, Tier, load_limits
from fasteomt.gates.masks import MaskLogits, MaskStatistics
from fasteomt.gates.outliers import inject
from fasteomt.gates.replay import captured, check_replay, different_inputs
from fasteomt.gates.verdict import GATES, Report, Subject, Verdict
from fasteomt.model.tiling import Tiling, crops_of_frame
from fasteomt.ops.target import Target
from fasteomt.picture import rgb_tensor
from fasteomt.predictor import Predictor
from fasteomt.provenance import source_digest
from fasteomt.stacks import Stack, get_stack
from fasteomt.video.source import Frame

if TYPE_CHECKING:
    from fasteomt.gates.picture import WorstFrames
    from fasteomt.result import Result


class Comparison:
    """One predictor against the fp32 reference, frame by frame: what gates M and H need."""

    def __init__(self, reference: Predictor, other: Predictor, limits: Limits, *, truth: bool) -> None:
        spec = reference.spec
        self._reference, self._other = reference, other
        self.masks = MaskStatistics(spec.class_ids, limits)
        self.clip = ClipStatistics(spec.names, limits, truth=truth, ignore=spec.class_ignore_index)

    def update(self, frame: Frame, expected: Result, truth: np.ndarray | None) -> Result:
        """Add a frame; `expected` is the reference's result. Returns the other's."""
        result = self._other.predict_rgb(frame.rgb, frame.pts)
        self.clip.update(expected, result, truth)
        if self.masks.wants(frame.index):
            logits = MaskLogits()
            for batch in crops(self._reference, frame.rgb).split(MAX_CROPS_PER_BATCH):
                logits.update(self._reference.engine.logits(batch), self._other.engine.logits(batch))
            self.masks.update(frame.index, logits.cosines, expected.mask, result.mask)
        return result


def crops(predictor: Predictor, rgb: np.ndarray) -> Tensor:
    """(H, W, 3) uint8 RGB -> (crops, 3, S, S) fp32, normalised, on the predictor's device."""
    spec = predictor.spec
    tiling = Tiling.of(rgb.shape[0], rgb.shape[1], spec.crop_size)
    return crops_of_frame(rgb_tensor(rgb).to(predictor.device), tiling, spec.mean, spec.std)


def run_gates(
    checkpoint: Checkpoint,
    stack: Stack,
    device: torch.device,
    footage: Footage,
    gates: Sequence[str] = GATES,
    *,
    worst: WorstFrames | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Judge a stack of a model on a clip.

    Frames are read once, and none is kept but what `worst` keeps, so memory doesn't grow with the clip.

    Args:
        gates: of 'M', 'H', 'G', 'O'.
        worst: collects the frames where the stack's masks differ most.
        progress: called with the number of frames done.

    Raises:
        InputError: an unknown gate, or a clip that can't be read or shows too little to judge by.
        UnsupportedError: the device can't run the stack.
    """
    unknown = [gate for gate in gates if gate not in GATES]
    if unknown or not gates:
        raise InputError(f"gates {', '.join(gates) or 'none'}: choose among {', '.join(GATES)}")
    # What is running now, even if the files change in the meantime.
    source, limits = source_digest(), load_limits()
    plan = stack.plan(checkpoint.spec, Target.of(device))
    tier = limits.tier(plan)
    # Once on the device: engines use such weights in place.
    weights = {name: weight.to(device, torch.float32) for name, weight in checkpoint.weights.items()}
    checkpoint = dataclasses.replace(checkpoint, weights=weights)
    reference = Predictor(checkpoint, stack=get_stack("fp32"), device=device)
    plain = Predictor(checkpoint, stack=stack, device=device)
    others = {}
    if worst is not None or not {"M", "H"}.isdisjoint(gates):
        others["H"] = plain
    if "O" in gates:
        injected = dataclasses.replace(checkpoint, weights=inject(checkpoint.spec, weights))
        others["O"] = Predictor(injected, stack=stack, device=device)
    truth = footage.truth is not None
    compared = {name: Comparison(reference, other, limits, truth=truth) for name, other in others.items()}
    frames, first = _watch(footage, reference, compared, worst, progress)

    subject = Subject(
        model=checkpoint.spec.short_name,
        stack=stack.name,
        plan=plan.hash,
        checkpoint=checkpoint.sha256,
        clip=footage.sha256,
        truth=footage.truth_sha256,
        gpu=hardware_name(device),
        torch=torch.__version__,
        source=source,
    )
    verdicts = []
    for gate in (gate for gate in GATES if gate in gates):
        if gate == "G":
            verdicts.append(replay_verdict(subject, tier, plain, crops(plain, first)))
        else:
            verdicts.append(judge(gate, subject, tier, compared["O" if gate == "O" else "H"]))
    classes = {name: one.clip.report() for name, one in compared.items()}
    height, width = first.shape[:2]
    return Report(subject, plan, tuple(verdicts), classes, frames, width, height)


def _watch(
    footage: Footage,
    reference: Predictor,
    compared: Mapping[str, Comparison],
    worst: WorstFrames | None,
    progress: Callable[[int], None] | None,
) -> tuple[int, np.ndarray]:
    """Take all frames through the reference and what is compared with it: how many, and the first's RGB."""
    count, first = 0, None
    for frame, true in footage.frames():
        first = frame.rgb if first is None else first
        if compared:
            expected = reference.predict_rgb(frame.rgb, frame.pts)
            results = {name: one.update(frame, expected, true) for name, one in compared.items()}
            if worst is not None:
                worst.update(frame, expected.mask, results["H"].mask)
        count += 1
        if progress is not None:
            progress(count)
    if first is None:
        raise InputError(f"{footage.source.location}: no frame in it: take another clip")
    return count, first


def judge(gate: str, subject: Subject, tier: Tier, found: Comparison) -> Verdict:
    """The verdict of gate M, H, or O, which is both of them."""
    values: dict[str, float] = {}
    if gate in ("M", "O"):
        values |= found.masks.values()
    if gate in ("H", "O"):
        values |= found.clip.values()
    return Verdict(gate, subject, values, tier.of(gate, truth=subject.truth is not None))


def replay_verdict(subject: Subject, tier: Tier, predictor: Predictor, example: Tensor) -> Verdict:
    """Gate G: the stack's network as one CUDA graph, its own where it has one, on crops like those of
    `example`."""
    if predictor.device.type != "cuda":
        return Verdict("G", subject, not_run=f"{predictor.device} has no CUDA graphs")
    inputs, engine = different_inputs(example[:MAX_CROPS_PER_BATCH]), predictor.engine
    replay: Callable[[Tensor], Sequence[Tensor]] = engine.logits
    if not engine.replays:
        try:
            replay = captured(engine.logits, inputs[0])
        except UnsupportedError as error:
            return Verdict("G", subject, not_run=f"stack {subject.stack} {error}")
    found = check_replay(engine.eager_logits, replay, inputs)
    return Verdict("G", subject, found.values(), tier.of("G", truth=False))
