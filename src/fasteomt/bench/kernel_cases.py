"""One implementation on one op's problem: is it right on random data, and how long does it take?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fasteomt.bench.lock import gpu_lock
from fasteomt.bench.telemetry import Sample
from fasteomt.bench.timer import Candidate, CudaClock, estimate, measure, rotations
from fasteomt.bench.worker import WorkerSpoilt
from fasteomt.engine.tuning import problem_key
from fasteomt.errors import brief, one_line
from fasteomt.ops import attention, depthwise_masks, implementation, linear
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

# More would make graphs long; weights so small may as well lie in the cache.
_MOST_SETS = 64
_FINALISTS = 3


@dataclass(frozen=True)
class Job:
    """A problem of op 'linear', 'attention' or 'depthwise_masks'.

    rows: how its rows lie, None outside of blocks.
    """

    op: str
    problem: Any
    rows: Rows | None

    @property
    def key(self) -> str:
        """Names it in a table."""
        return problem_key(self.problem)

    @property
    def flops(self) -> float:
        if isinstance(self.problem, linear.Problem):
            return 2.0 * self.problem.m * self.problem.n * self.problem.k
        if isinstance(self.problem, depthwise_masks.Problem):
            return 2.0 * (9 + self.problem.queries) * self.problem.grid.pixels * self.problem.channels
        rows, width = self.problem.rows, self.problem.heads * self.problem.head_dim
        return 4.0 * rows.crops * rows.tokens**2 * width

    @property
    def family(self) -> tuple[str, ...]:
        """The same for jobs that share compiled kernels, by and large."""
        p = self.problem
        kind = {"linear": "epilogue", "attention": "rows", "depthwise_masks": "grid"}[self.op]
        return self.op, str(p.dtype), str(getattr(p, kind))


@dataclass(frozen=True)
class Choice:
    """An implementation with one of its configurations, None where it has no choice."""

    implementation: str
    config: Any = None

    @property
    def name(self) -> str:
        if self.config is None:
            return self.implementation
        return f"{self.implementation} {' '.join(f'{k}={v}' for k, v in asdict(self.config).items())}"


# Calls the implementation on its inputs, and returns what holds the result.
Call = Callable[..., Tensor]


class _Case(ABC):
    """Random inputs of a job. `rounded`: the format of results, or of what they are sums of."""

    reads_out = False

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self.device, self.dtype = job, device, job.problem.dtype
        self.random = torch.Generator(device).manual_seed(0)
        self.out_dtype = self.rounded = self.dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(shape, generator=self.random, device=self.device)
        return values.to(dtype or self.dtype)

    @abstractmethod
    def call(self, module: ModuleType, config: object) -> Call:
        """`module.run` in a configuration, given what `inputs` gives."""

    def result(
        self, module: ModuleType, config: object, inputs: tuple[Tensor, ...], *, exact: bool = False
    ) -> Tensor:
        """All that a call writes, for comparison; in fp32 if `exact`."""
        return self.call(module, config)(*inputs)

    def rotation(self, rows: Rows, head_dim: int) -> Rotation:
        angles = self.normal(rows.patches, head_dim // 2, dtype=torch.float32)
        return Rotation(angles.sin(), angles.cos())


class LinearCase(_Case):
    def __init__(self, job: Job, device: torch.device) -> None:
        super().__init__(job, device)
        p: linear.Problem = job.problem
        self.out_dtype = self.rounded = p.out_dtype or p.dtype
        self.x, self.weight = self.normal(p.m, p.k), self.normal(p.n, p.k) * p.k**-0.5
        self.bias = self.normal(p.n, dtype=torch.float32)
        self.options: dict[str, Any] = {"epilogue": p.epilogue, "rows": job.rows}
        if p.epilogue == "rope":
            assert job.rows is not None
            heads = p.n // p.head_dim
            turned = {"rotation": self.rotation(job.rows, p.head_dim), "rotated": heads // 3 * 2 * p.head_dim}
            self.options |= turned
        self.before = self.normal(p.m, p.n, dtype=torch.float32)
        if p.epilogue in ("residual", "norm"):
            self.options["scale"] = self.normal(p.n, dtype=torch.float32)
            self.out_dtype = torch.float32
            self.reads_out = True
        if p.epilogue == "residual":
            self.rounded = torch.float32
        self.norm = self.normal(2, p.n, dtype=torch.float32)

    def call(self, module: ModuleType, config: object) -> Call:
        options = self.options | ({} if config is None else {"config": config})
        if self.job.problem.epilogue == "norm":
            options["norm"] = self._normed()

        def run(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
            module.run(x, weight, bias, out, **options)
            return out

        return run

    def _normed(self, dtype: torch.dtype | None = None) -> linear.Normed:
        """For one configuration."""
        p: linear.Problem = self.job.problem
        out, (weight, bias) = self.normal(p.m, p.n, dtype=dtype), self.norm
        return linear.Normed(out, weight, bias, 1e-6, linear.parts_for(p.m, p.n, self.device))

    def result(
        self, module: ModuleType, config: object, inputs: tuple[Tensor, ...], *, exact: bool = False
    ) -> Tensor:
        if self.job.problem.epilogue != "norm":
            return super().result(module, config, inputs)
        normed = self._normed(torch.float32 if exact else None)
        options = self.options | ({} if config is None else {"config": config})
        module.run(*inputs, **options, norm=normed)
        return torch.cat([inputs[-1].float(), normed.out.float()])

    def inputs(
        self, module: ModuleType, out_dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        bias = self.bias.to(module.BIAS_DTYPE or self.dtype)
        return self.x, self.weight, bias, self.before.to(out_dtype or self.out_dtype, copy=True)

    def sets(self, module: ModuleType, l2_bytes: int) -> list[tuple[Tensor, ...]]:
        """Weights come from memory, as in a network; activations don't, since they were just made."""
        x, weight, bias, out = self.inputs(module)
        count = min(rotations(weight.nbytes, l2_bytes), _MOST_SETS)
        return [(x, weight.clone(), bias, out) for _ in range(count)]


class AttentionCase(_Case):
    def __init__(self, job: Job, device: torch.device) -> None:
        super().__init__(job, device)
        p: attention.Problem = job.problem
        self.out_dtype = self.rounded = p.out_dtype or p.dtype
        self.width = p.heads * p.head_dim
        self.qkv = self.normal(p.rows.total, 3 * self.width)
        self.turn = self.rotation(p.rows, p.head_dim) if p.rope else None

    def call(self, module: ModuleType, config: object) -> Call:
        p, options = self.job.problem, {} if config is None else {"config": config}
        if hasattr(module, "room_for"):
            options["room"] = module.room_for(p, self.qkv.device)
        found: Call = partial(_attend, module, (p.heads, p.rows, self.turn), options)
        return found

    def inputs(self, module: ModuleType, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        out = self.normal(len(self.qkv), self.width, dtype=out_dtype or self.out_dtype)
        return self.qkv, out

    def sets(self, module: ModuleType, l2_bytes: int) -> list[tuple[Tensor, ...]]:
        return [self.inputs(module)]


def _attend(
    module: ModuleType, fixed: tuple[Any, ...], options: dict[str, Any], qkv: Tensor, out: Tensor
) -> Tensor:
    found: Tensor = module.run(qkv, out, *fixed, **options)
    return found


class DepthwiseMasksCase(_Case):
    def __init__(self, job: Job, device: torch.device) -> None:
        super().__init__(job, device)
        p: depthwise_masks.Problem = job.problem
        crops = p.grid.crops
        self.out_dtype = p.out_dtype
        self.x = self.normal(p.grid.pixels, p.channels)
        weights = self.normal(11, p.channels, dtype=torch.float32)
        taps, weight, bias = (one.squeeze(0) for one in weights.split([9, 1, 1]))
        self.taps, self.eps = depthwise_masks.in_range(taps, 1e-6)
        self.folded = self.normal(crops, p.queries + 1, p.channels)
        self.sums = self.normal(2, crops * p.queries, dtype=torch.float32)
        queries = self.normal(crops * p.queries, p.channels)
        oracle = import_module("fasteomt.ops.depthwise_masks.reference")
        oracle.fold(queries, weight, bias, self.folded, self.sums)

    def call(self, module: ModuleType, config: object) -> Call:
        taps, eps, grid = self.taps, self.eps, self.job.problem.grid
        options = {} if config is None else {"config": config}

        def run(x: Tensor, folded: Tensor, sums: Tensor, out: Tensor) -> Tensor:
            module.run(x, taps, eps, folded, sums, out, grid, **options)
            return out

        return run

    def inputs(
        self, module: ModuleType, out_dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        grid = self.job.problem.grid
        shape = (grid.crops, self.job.problem.queries, grid.resolution, grid.resolution)
        return self.x, self.folded, self.sums, self.normal(*shape, dtype=out_dtype or self.out_dtype)

    def sets(self, module: ModuleType, l2_bytes: int) -> list[tuple[Tensor, ...]]:
        return [self.inputs(module)]


_CASES: dict[str, type[LinearCase] | type[AttentionCase] | type[DepthwiseMasksCase]] = {
    "linear": LinearCase,
    "attention": AttentionCase,
    "depthwise_masks": DepthwiseMasksCase,
}


def without_oracle(job: Job, target: Target) -> str | None:
    """Why there is no oracle for a job; None if there is one."""
    oracle = import_module(f"fasteomt.ops.{job.op}.reference")
    reason: str | None = oracle.unsupported(target, job.problem)
    return reason


def prepare(device: torch.device) -> None:
    """Import, and take hold of the device, before calls whose time is limited."""
    torch.zeros(1, device=device)


@torch.inference_mode()
def check(job: Job, choice: Choice, device: torch.device) -> str | None:
    """Compile and run once; what is wrong with the result, or None.

    The relative L2 error may be what rounding gives, or, where `library` can do it, twice as large as its.

    Raises:
        WorkerSpoilt: the GPU can't be used any more in this process.
    """
    try:
        with _current(device):
            return _check(job, choice, device)
    except Exception as error:
        reason = brief(f"{type(error).__name__}: {one_line(error)}")
        if device.type == "cuda":
            _check_device(device, reason)
        return reason


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Kernels are launched on the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _check(job: Job, choice: Choice, device: torch.device) -> str | None:
    case, target = _CASES[job.op](job, device), Target.of(device)
    oracle = import_module(f"fasteomt.ops.{job.op}.reference")
    truth = case.result(oracle, None, case.inputs(oracle, torch.float32), exact=True)
    limit = 1e-4 if case.rounded == torch.float32 else torch.finfo(case.rounded).eps / 2
    with suppress(Exception):
        library = implementation(job.op, "library", target, job.problem)
        limit = max(limit, 2 * _error(case.result(library, None, case.inputs(library)), truth))
    module = implementation(job.op, choice.implementation, target, job.problem)
    inputs = case.inputs(module)
    if not case.reads_out:
        inputs[-1].fill_(torch.nan)  # what isn't written is wrong
    error = _error(case.result(module, choice.config, inputs), truth)
    return None if error <= limit else f"wrong: relative error {error:.2g}, at most {limit:.2g} is right"


def _check_device(device: torch.device, reason: str) -> None:
    try:
        torch.cuda.synchronize(device)
    except Exception:
        raise WorkerSpoilt(reason) from None


def _error(found: Tensor, truth: Tensor) -> float:
    return float((found.float() - truth).norm() / truth.norm())


class _QuietClock(CudaClock):
    """Doesn't ask nvidia-smi how the GPU is, which takes longer than all that is timed here."""

    def sample(self, work: Callable[[], None]) -> Sample | None:
        return None


@torch.inference_mode()
def time_choices(
    job: Job, choices: Sequence[Choice], device: torch.device, seconds: float
) -> tuple[dict[Choice, float], dict[Choice, str]]:
    """Seconds a call by choice, and why others have none.

    All get a rough estimate; the fastest of all and the best of each implementation are then timed in turns.
    """
    on_gpu = device.type == "cuda"
    mode, clock = ("graph", _QuietClock(device)) if on_gpu else ("calls", None)
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size if on_gpu else 1
    case, target = _CASES[job.op](job, device), Target.of(device)
    rough: dict[Choice, float] = {}
    failures: dict[Choice, str] = {}
    candidates: dict[Choice, Candidate] = {}
    sets: dict[object, list[tuple[Tensor, ...]]] = {}
    with gpu_lock(device, wait_s=10), _current(device):
        for choice in choices:
            try:
                module = implementation(job.op, choice.implementation, target, job.problem)
                kind = getattr(module, "BIAS_DTYPE", None)
                if kind not in sets:
                    sets[kind] = case.sets(module, l2_bytes)
                call, inputs = case.call(module, choice.config), sets[kind]
                candidates[choice] = Candidate(choice.name, call, inputs)
                rough[choice] = estimate(candidates[choice], device, mode=mode, clock=clock)
            except Exception as error:
                failures[choice] = brief(f"{type(error).__name__}: {one_line(error)}")
                if on_gpu:
                    _check_device(device, f"{choice.name}: {failures[choice]}")
        finalists = _finalists(rough)
        if not finalists:
            return {}, failures
        final = [candidates[choice] for choice in finalists]
        timings = measure(final, device, mode=mode, seconds=seconds, rounds=2, clock=clock)
    return {choice: timings[choice.name].median for choice in finalists}, failures


def _finalists(rough: dict[Choice, float]) -> list[Choice]:
    ranked = sorted(rough, key=lambda choice: rough[choice])
    of_each: dict[str, Choice] = {}
    for choice in ranked:
        of_each.setdefault(choice.implementation, choice)
    return list(dict.fromkeys([*ranked[:_FINALISTS], *of_each.values()]))
