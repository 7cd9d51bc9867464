"""One implementation on one op's problem: is it right on random data, and how long does it take?"""

from __future__ import annotations

import math
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
from fasteomt.engine.program import forked
from fasteomt.engine.tuning import problem_key
from fasteomt.errors import brief, one_line
from fasteomt.ops import attention, implementation, linear
from fasteomt.ops.early import ordinary_launches
from fasteomt.ops.rotation import Rotation
from fasteomt.ops.rows import Rows
from fasteomt.ops.target import Target

# More would make graphs long; weights so small may as well lie in the cache.
_MOST_SETS = 64
_FINALISTS = 3


@dataclass(frozen=True)
class Job:
    """A problem of op 'linear' or 'attention'.

    rows: how its rows lie, None outside of blocks. chains: that run side by side, this one among them.
    """

    op: str
    problem: Any
    rows: Rows | None
    chains: int = 1

    @property
    def key(self) -> str:
        """Names it in a table."""
        return problem_key(self.problem, self.chains)

    @property
    def flops(self) -> float:
        if isinstance(self.problem, linear.Problem):
            return 2.0 * self.problem.m * self.problem.n * self.problem.k
        rows, width = self.problem.rows, self.problem.heads * self.problem.head_dim
        return 4.0 * rows.crops * rows.tokens**2 * width

    @property
    def family(self) -> tuple[str, ...]:
        """The same for jobs that share compiled kernels, by and large."""
        kind = self.problem.epilogue if isinstance(self.problem, linear.Problem) else self.problem.rows
        return self.op, str(self.problem.dtype), str(kind)


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


class _Case:
    """Random inputs of a job."""

    reads_out = False

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self.device, self.dtype = job, device, job.problem.dtype
        self.random = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(shape, generator=self.random, device=self.device)
        return values.to(dtype or self.dtype)

    def rotation(self, rows: Rows, head_dim: int) -> Rotation:
        angles = self.normal(rows.patches, head_dim // 2, dtype=torch.float32)
        return Rotation(angles.sin(), angles.cos())


class LinearCase(_Case):
    def __init__(self, job: Job, device: torch.device) -> None:
        super().__init__(job, device)
        p: linear.Problem = job.problem
        self.x, self.weight = self.normal(p.m, p.k), self.normal(p.n, p.k) * p.k**-0.5
        self.bias = self.normal(p.n, dtype=torch.float32)
        self.options: dict[str, Any] = {"epilogue": p.epilogue, "rows": job.rows}
        if p.epilogue == "rope":
            assert job.rows is not None
            heads = p.n // p.head_dim
            turned = {"rotation": self.rotation(job.rows, p.head_dim), "rotated": heads // 3 * 2 * p.head_dim}
            self.options |= turned
        if p.norm == "folded":
            parts = self.normal(p.m, p.k // linear.PART, 2, dtype=torch.float32)
            parts[..., 1] = linear.PART * (1 + parts[..., 1].square())
            self.options["norm"] = linear.Folded(parts, self.weight.float().sum(dim=1), 1e-6)
        if p.norm == "handed on":
            made = self.normal(p.m, p.n), self.normal(p.m, p.n // linear.PART, 2, dtype=torch.float32)
            self.options["norm"] = linear.HandedOn(*made)
        self.before = self.normal(p.m, p.n, dtype=torch.float32)
        self.out_dtype = self.dtype
        if p.epilogue == "residual":
            self.options["scale"], self.out_dtype = self.normal(p.n, dtype=torch.float32), torch.float32
            self.reads_out = True

    def call(self, module: ModuleType, config: object) -> Call:
        options = self.options | ({} if config is None else {"config": config})

        def run(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
            module.run(x, weight, bias, out, **options)
            return out

        return run

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
        self.width, self.out_dtype = p.heads * p.head_dim, self.dtype
        self.qkv = self.normal(p.rows.total, 3 * self.width)
        self.turn = self.rotation(p.rows, p.head_dim) if p.rope else None

    def call(self, module: ModuleType, config: object) -> Call:
        p, options = self.job.problem, {} if config is None else {"config": config}
        found: Call = partial(_attend, module, (p.heads, p.rows, self.turn), options)
        return found

    def inputs(self, module: ModuleType, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        out = self.normal(len(self.qkv), self.width, dtype=out_dtype)
        return self.qkv, out

    def sets(self, module: ModuleType, l2_bytes: int) -> list[tuple[Tensor, ...]]:
        return [self.inputs(module)]


def _attend(
    module: ModuleType, fixed: tuple[Any, ...], options: dict[str, Any], qkv: Tensor, out: Tensor
) -> Tensor:
    found: Tensor = module.run(qkv, out, *fixed, **options)
    return found


_CASES: dict[str, type[LinearCase] | type[AttentionCase]] = {
    "linear": LinearCase,
    "attention": AttentionCase,
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
    truth = case.call(oracle, None)(*case.inputs(oracle, torch.float32))
    limit = 1e-4 if case.out_dtype == torch.float32 else torch.finfo(case.out_dtype).eps / 2
    with suppress(Exception):
        library = implementation(job.op, "library", target, job.problem)
        limit = max(limit, 2 * _error(case.call(library, None)(*case.inputs(library)), truth))
    module = implementation(job.op, choice.implementation, target, job.problem)
    inputs = case.inputs(module)
    if not case.reads_out:
        inputs[-1].fill_(torch.nan)  # what isn't written is wrong
    error = _error(case.call(module, choice.config)(*inputs), truth)
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
    """Seconds a call by choice, and why others have none; of chains, the time that each call adds.

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
                if job.chains == 1:
                    candidates[choice] = Candidate(choice.name, call, inputs)
                else:
                    beside = _SideBySide(call, inputs, job.chains, device)
                    times = math.ceil(len(inputs) / _SideBySide.CALLS)
                    candidates[choice] = Candidate(choice.name, beside, [()] * times)
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
    calls = 1 if job.chains == 1 else job.chains * _SideBySide.CALLS
    return {choice: timings[choice.name].median / calls for choice in finalists}, failures


class _SideBySide:
    """As many calls on each of several streams, as chains of crops make them."""

    CALLS = 8

    def __init__(
        self, call: Call, sets: Sequence[tuple[Tensor, ...]], chains: int, device: torch.device
    ) -> None:
        self._call, self._sets, self._next = call, sets, 0
        # Weights are the same for all; activations, the first and the last, are a chain's own.
        self._own = [(sets[0][0].clone(), sets[0][-1].clone()) for _ in range(chains)]
        self._streams = [torch.cuda.Stream(device) if x.is_cuda else None for x, _ in self._own]

    def __call__(self) -> None:
        weights = [self._sets[(self._next + i) % len(self._sets)][1:-1] for i in range(self.CALLS)]
        self._next += self.CALLS
        for stream, (x, out) in zip(self._streams, self._own, strict=True):
            with forked(stream):
                for number, some in enumerate(weights):
                    with ordinary_launches() if number == 0 else nullcontext():
                        self._call(x, *some, out)
        for stream in self._streams:
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)


def _finalists(rough: dict[Choice, float]) -> list[Choice]:
    ranked = sorted(rough, key=lambda choice: rough[choice])
    of_each: dict[str, Choice] = {}
    for choice in ranked:
        of_each.setdefault(choice.implementation, choice)
    return list(dict.fromkeys([*ranked[:_FINALISTS], *of_each.values()]))
