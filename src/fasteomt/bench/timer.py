"""How long a call takes, measured so that neither accident nor wish has a say in it.

Candidates take turns under one GPU lock, on random inputs that rotate so that they come from memory and not
from the cache. First calls and warm-up stay out of the figures and are reported apart.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from fasteomt.bench import telemetry
from fasteomt.bench.lock import gpu_lock
from fasteomt.bench.telemetry import Sample, Telemetry
from fasteomt.engine import resolve_device
from fasteomt.engine.graph import capture
from fasteomt.errors import InputError, UnsupportedError, brief

MODES = ("graph", "calls", "sync")

_COLD = 4  # input sets together are this many times the cache
_SLICES = 4  # turns of each candidate in a round
_STEADY_WINDOWS = 4
_STEADY = 0.01  # relative spread of the last windows of a warm-up that is over
_ESTIMATES = 5  # passes
_LONGEST_WARM_UP = 4  # times `seconds`: what varies for good, as under a limit of power, never settles
_SHORTEST_GRAPH_S = 2e-3  # shorter replays would measure how fast the host launches graphs
_UNJOINED_S, _UNJOINED_SHARE = 5e-3, 0.05


@dataclass(frozen=True)
class Candidate:
    """What is timed: `call` with each argument tuple of `inputs` in turn (see `rotations`)."""

    name: str
    call: Callable[..., object]
    inputs: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Timing:
    """Seconds a call. `median`, `min` and `max` are over `samples`, the mean of each of `n` rounds.

    calls: timed calls in all.
    first_call_s: the first call, with whatever it compiles; capture_s: the CUDA graph's making. Neither is in
        the samples, nor is the warm-up of `warm_up_s`.
    steady: the warm-up ended because times had settled, not because it had lasted too long.
    input_sets, input_bytes: how many inputs rotate, and the memory they take together, shared parts once.
    telemetry: the GPU's state under this candidate's load; None on the CPU.
    """

    name: str
    mode: str
    median: float
    min: float
    max: float
    n: int
    samples: tuple[float, ...]
    calls: int
    first_call_s: float
    capture_s: float | None
    warm_up_s: float
    steady: bool
    input_sets: int
    input_bytes: int
    telemetry: Telemetry | None


class Clock(Protocol):
    """The device that candidates run on, as far as time is concerned. All times are in seconds."""

    def now(self) -> float:
        """The host's clock."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        ...

    def elapsed(self, work: Callable[[], None]) -> float:
        """Do `work`; how long the device took, from an idle start to its last operation."""
        ...

    def graph(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture `work`; what replays it."""
        ...

    def sample(self, work: Callable[[], None]) -> Sample | None:
        """The device's state while it is busy with `work`."""
        ...


class CpuClock:
    def now(self) -> float:
        return perf_counter()

    def synchronize(self) -> None:
        # A call that uses a GPU after all isn't done when it returns.
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def elapsed(self, work: Callable[[], None]) -> float:
        start = perf_counter()
        work()
        self.synchronize()
        return perf_counter() - start

    def graph(self, work: Callable[[], None]) -> Callable[[], None]:
        raise UnsupportedError("mode 'graph' needs a CUDA device: use 'calls' or 'sync' on the CPU")

    def sample(self, work: Callable[[], None]) -> Sample | None:
        return None


class CudaClock:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> float:
        return perf_counter()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def elapsed(self, work: Callable[[], None]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        stream_done = perf_counter()
        self.synchronize()
        rest = perf_counter() - stream_done
        seconds = start.elapsed_time(end) / 1e3
        # Events see the current stream alone: work left on another would be had for nothing.
        if rest > max(_UNJOINED_S, _UNJOINED_SHARE * seconds):
            raise InputError(
                f"the GPU worked on for {rest * 1e3:.1f} ms after the timed stream had ended: "
                "make the current stream wait for every side stream"
            )
        return seconds

    def graph(self, work: Callable[[], None]) -> Callable[[], None]:
        replay = capture(work, warmups=1)

        def run() -> None:
            replay.replay()

        return run

    def sample(self, work: Callable[[], None]) -> Sample | None:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(telemetry.sample, self.device)
            while not answer.done():
                work()
                self.synchronize()
            return answer.result()


def rotations(nbytes: int, l2_bytes: int) -> int:
    """How many input sets of `nbytes` it takes to exceed a cache of `l2_bytes` several times.

    The cache's size is `torch.cuda.get_device_properties(device).L2_cache_size`.

    Raises:
        InputError: a set without bytes can't displace anything.
    """
    if nbytes < 1:
        raise InputError("input sets of 0 bytes can't displace the cache: pass what the call reads")
    return max(1, math.ceil(_COLD * l2_bytes / nbytes))


def measure(
    candidates: Sequence[Candidate],
    device: torch.device,
    *,
    mode: str,
    seconds: float = 1.0,
    rounds: int = 3,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Time candidates against each other.

    Each is called once (compiling), captured where asked, and run until its times are steady. Then in every
    round the candidates take turns, several short ones each, whose order moves on from round to round.

    Args:
        mode: 'graph': CUDA events around replays of one graph that holds a call on every input set; 'calls':
            events around back-to-back calls; 'sync': the host's clock around one synchronised call at a time.
            On the CPU, 'calls' and 'sync', both by the host's clock.
        seconds: timed per candidate and round; also the shortest warm-up, and a quarter of the longest.
        clock: stands in for the device.

    Returns:
        By candidate's name, in the given order.

    Raises:
        InputError: bad arguments, no such device, inputs of zeros, work on unjoined streams, or the GPU is in
            use.
        UnsupportedError: what the device can't do: a graph on the CPU, a call that can't be captured.
    """
    device = resolve_device(device)
    _check(candidates, device, mode, seconds, rounds)
    clock = clock or _clock(device)
    with gpu_lock(device), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        runners = [_Runner(candidate, clock, mode) for candidate in candidates]
        for runner in runners:
            runner.warm_up(seconds)
        for number in range(rounds):
            first = number % len(runners)
            _round(runners[first:] + runners[:first], seconds / _SLICES)
    return {runner.candidate.name: runner.timing() for runner in runners}


def estimate(candidate: Candidate, device: torch.device, *, mode: str, clock: Clock | None = None) -> float:
    """Seconds a call, of the fastest of a few passes: to leave out what is clearly slower, before `measure`.

    Raises:
        As `measure`.
    """
    device = resolve_device(device)
    _check([candidate], device, mode, 1.0, 1)
    with gpu_lock(device), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        runner = _Runner(candidate, clock or _clock(device), mode)
        return min(runner.seconds(1) for _ in range(_ESTIMATES)) / runner.calls_per_pass


def _clock(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def _round(runners: Sequence[_Runner], slice_s: float) -> None:
    for _ in range(_SLICES):
        for runner in runners:
            runner.take_turn(slice_s)
    for runner in runners:
        runner.end_round()


class _Runner:
    """A candidate with its times so far. A pass is a call on every input set, in a graph several of those."""

    def __init__(self, candidate: Candidate, clock: Clock, mode: str) -> None:
        self.candidate, self.clock, self.mode = candidate, clock, mode
        self.calls_per_pass = len(candidate.inputs)
        self.first_call_s = self._host_time(lambda: candidate.call(*candidate.inputs[0]))
        self.capture_s: float | None = None
        self._pass = self._call_all
        if mode == "graph":
            self.capture_s = self._host_time(self._capture)
        self.pass_s = self.seconds(1)
        self.warm_up_s, self.steady = 0.0, False
        self._turns: list[tuple[float, int]] = []  # of this round: seconds, calls
        self._samples: list[float] = []
        self._states: list[Sample | None] = []
        self._calls = 0

    def _host_time(self, work: Callable[[], object]) -> float:
        start = self.clock.now()
        work()
        self.clock.synchronize()
        return self.clock.now() - start

    def _call_all(self) -> None:
        for arguments in self.candidate.inputs:
            self.candidate.call(*arguments)

    def _capture(self) -> None:
        self._pass = self.clock.graph(self._call_all)
        self._pass()
        cycles = math.ceil(_SHORTEST_GRAPH_S / max(self.clock.elapsed(self._pass), 1e-6))
        if cycles > 1:
            self._pass = self.clock.graph(lambda: _repeat(self._call_all, cycles))
            self.calls_per_pass *= cycles

    def seconds(self, passes: int) -> float:
        """The mean of that many passes."""
        if self.mode != "sync":
            return self.clock.elapsed(lambda: _repeat(self._pass, passes)) / passes
        total = 0.0
        for _ in range(passes):
            for arguments in self.candidate.inputs:
                total += self._host_time(partial(self.candidate.call, *arguments))
        return total / passes

    def _passes_in(self, seconds: float) -> int:
        return max(1, round(seconds / max(self.pass_s, 1e-9)))

    def warm_up(self, seconds: float) -> None:
        start, windows = self.clock.now(), deque[float](maxlen=_STEADY_WINDOWS)
        while True:
            self.pass_s = self.seconds(self._passes_in(seconds / (2 * _STEADY_WINDOWS)))
            windows.append(self.pass_s)
            self.warm_up_s = self.clock.now() - start
            settled = len(windows) == _STEADY_WINDOWS and max(windows) <= (1 + _STEADY) * min(windows)
            self.steady = settled and self.warm_up_s >= seconds
            if self.steady or self.warm_up_s >= _LONGEST_WARM_UP * seconds:
                return

    def take_turn(self, seconds: float) -> None:
        self.seconds(1)  # the others' data leave the cache and the pipeline fills
        passes = self._passes_in(seconds)
        self._turns.append((self.seconds(passes) * passes, passes * self.calls_per_pass))

    def end_round(self) -> None:
        calls = sum(calls for _, calls in self._turns)
        self._samples.append(sum(seconds for seconds, _ in self._turns) / calls)
        self._calls += calls
        self._turns.clear()
        self._states.append(self.clock.sample(self._pass))

    def timing(self) -> Timing:
        return Timing(
            name=self.candidate.name,
            mode=self.mode,
            median=statistics.median(self._samples),
            min=min(self._samples),
            max=max(self._samples),
            n=len(self._samples),
            samples=tuple(self._samples),
            calls=self._calls,
            first_call_s=self.first_call_s,
            capture_s=self.capture_s,
            warm_up_s=self.warm_up_s,
            steady=self.steady,
            input_sets=len(self.candidate.inputs),
            input_bytes=unique_bytes(self.candidate.inputs),
            telemetry=telemetry.summarise(self._states),
        )


def _repeat(work: Callable[[], None], times: int) -> None:
    for _ in range(times):
        work()


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)


def unique_bytes(value: object) -> int:
    """Memory of all tensors in `value`; what several of them share counts once."""
    storages = (tensor.untyped_storage() for tensor in tensors(value))
    return sum({(s.device, s.data_ptr()): s.nbytes() for s in storages}.values())


def _check(
    candidates: Sequence[Candidate], device: torch.device, mode: str, seconds: float, rounds: int
) -> None:
    if mode not in MODES:
        raise InputError(f"unknown mode {brief(mode)}: choose one of {', '.join(MODES)}")
    if not (math.isfinite(seconds) and seconds > 0) or rounds < 1:
        raise InputError(f"{seconds} seconds, {rounds} rounds: both must be positive")
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) != len(names):
        raise InputError(f"candidates {brief(names)}: need at least one, each with its own name")
    for candidate in candidates:
        if not candidate.inputs:
            raise InputError(f"candidate '{candidate.name}' has no inputs: pass at least one argument tuple")
        for number, arguments in enumerate(candidate.inputs):
            for tensor in tensors(arguments):
                where = f"candidate '{candidate.name}', input set {number}, {_describe(tensor)}"
                if tensor.device.type == "cuda" and tensor.device != device:
                    raise InputError(f"{where}: is on {tensor.device}: time it on that device, not {device}")
                if _is_all_zero(tensor):
                    raise InputError(f"{where}: is all zeros, which run faster than data: use random values")


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _is_all_zero(tensor: Tensor) -> bool:
    """Of data: floating point, bytes (pixels, packed formats). Masks and indices may well be zero."""
    if tensor.numel() < 2 or not (tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.int8)):
        return False
    if tensor.dtype is torch.float4_e2m1fn_x2:  # two values a byte, which nothing converts
        return not bool((tensor.view(torch.uint8) & 0x77).any())
    if tensor.is_floating_point() and tensor.itemsize == 1:  # torch computes little in 8 bits
        tensor = tensor.float()
    return not bool(tensor.any())
