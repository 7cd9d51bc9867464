"""The timer's logic on a made-up device whose calls take exactly as long as the test says."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from fasteomt.bench.telemetry import Sample
from fasteomt.bench.timer import Candidate, Timing, estimate, measure, rotations, unique_bytes
from fasteomt.errors import InputError, UnsupportedError

CPU = torch.device("cpu")
GIB = 2**30


class FakeClock:
    """Time passes only where a call lets it pass; waiting for the device takes `sync_s`."""

    def __init__(self, sync_s: float = 0.0) -> None:
        self.time, self.sync_s = 0.0, sync_s
        self.graphs = 0
        self.states = iter(Sample(1000.0 + i, 3000.0, 500.0, 60.0, ()) for i in itertools.count())
        self.rounds_ended = 0

    def now(self) -> float:
        return self.time

    def synchronize(self) -> None:
        self.time += self.sync_s

    def elapsed(self, work: Callable[[], None]) -> float:
        start = self.time
        work()
        return self.time - start

    def graph(self, work: Callable[[], None]) -> Callable[[], None]:
        self.graphs += 1
        self.time += 100.0
        return work

    def sample(self, work: Callable[[], None]) -> Sample:
        work()
        self.rounds_ended += 1
        return next(self.states)


def taking(clock: FakeClock, seconds: float | Callable[[], float]) -> Callable[..., None]:
    def call(*_: object) -> None:
        clock.time += seconds() if callable(seconds) else seconds

    return call


def one(clock: FakeClock, call: Callable[..., None], mode: str = "calls", **options: Any) -> Timing:
    return measure([Candidate("a", call, [()])], CPU, mode=mode, clock=clock, **options)["a"]


def test_the_figure_is_the_median_of_the_rounds_means() -> None:
    clock = FakeClock()
    cost = [1e-3, 4e-3, 2e-3]
    found = one(clock, taking(clock, lambda: cost[min(clock.rounds_ended, 2)]))
    assert found.samples == pytest.approx(cost)
    assert (found.median, found.min, found.max) == pytest.approx((2e-3, 1e-3, 4e-3))
    assert found.n == 3


def test_a_rounds_mean_is_over_its_timed_calls_alone() -> None:
    """Each turn starts with a pass that doesn't count; the others' calls all weigh alike."""
    random = Random(0)

    class Logging(FakeClock):
        def __init__(self) -> None:
            super().__init__()
            self.windows: list[tuple[float, int]] = []
            self.calls = 0

        def elapsed(self, work: Callable[[], None]) -> float:
            self.calls = 0
            seconds = super().elapsed(work)
            self.windows.append((seconds, self.calls))
            return seconds

    clock = Logging()

    def call() -> None:
        clock.calls += 1
        clock.time += random.uniform(1e-3, 9e-3)

    found = one(clock, call, rounds=1)
    turns = clock.windows[-8:]
    untimed, timed = turns[::2], turns[1::2]
    assert [calls for _, calls in untimed] == [1] * 4
    seconds, calls = sum(s for s, _ in timed), sum(n for _, n in timed)
    assert calls > 40
    assert found.calls == calls
    assert found.median == pytest.approx(seconds / calls)


def test_each_mode_counts_what_it_should() -> None:
    """Waiting for the device is part of a synchronised call, and of nothing else."""
    for mode, expected in (("calls", 1e-3), ("graph", 1e-3), ("sync", 3e-3)):
        clock = FakeClock(sync_s=2e-3)
        assert one(clock, taking(clock, 1e-3), mode).median == pytest.approx(expected), mode


def test_compiling_and_capturing_are_told_apart_from_the_times() -> None:
    clock = FakeClock()
    calls = itertools.count()
    found = one(clock, taking(clock, lambda: 50.0 if next(calls) == 0 else 1e-3), "graph")
    assert found.first_call_s == pytest.approx(50.0)
    assert found.capture_s is not None and found.capture_s >= 100.0
    assert found.max == pytest.approx(1e-3)
    clock = FakeClock()
    assert one(clock, taking(clock, 1e-3)).capture_s is None


def test_warm_up_lasts_until_times_have_settled() -> None:
    clock = FakeClock()
    # 5 ms at first, falling to 1 ms by the third second
    found = one(clock, taking(clock, lambda: max(1e-3, 5e-3 - clock.time * 4e-3 / 3)), seconds=1.2)
    assert found.steady
    assert 3 <= found.warm_up_s < 4.8
    assert found.samples == pytest.approx([1e-3] * 3)


def test_warm_up_lasts_as_long_as_a_round_even_if_times_are_steady_at_once() -> None:
    clock = FakeClock()
    found = one(clock, taking(clock, 1e-3), seconds=2.0)
    assert found.steady and 2.0 <= found.warm_up_s < 3.0


def test_times_that_never_settle_are_marked() -> None:
    clock = FakeClock()
    costs = itertools.cycle([1e-3] * 100 + [2e-3] * 100)
    found = one(clock, taking(clock, lambda: next(costs)), seconds=0.5)
    assert not found.steady
    assert 2.0 <= found.warm_up_s < 2.5


def test_candidates_take_turns_and_the_first_changes() -> None:
    clock = FakeClock()
    log: list[str] = []

    def call(name: str) -> Callable[..., None]:
        def run(*_: object) -> None:
            log.append(name)
            clock.time += 1e-3

        return run

    found = measure([Candidate(n, call(n), [()]) for n in "abc"], CPU, mode="calls", clock=clock)
    runs = [name for name, _ in itertools.groupby(log)]
    # first calls, warm-up, then three rounds of four turns each, ended by a look at the GPU's state
    turns = runs[-3 * 15 :]
    assert list(found) == ["a", "b", "c"]
    assert turns[:15] == list("abc" * 5)
    assert turns[15:30] == list("bca" * 5)
    assert turns[30:] == list("cab" * 5)


def test_a_drift_falls_on_all_candidates_alike() -> None:
    """A clock that sinks by a fifth during the measurement must not make two equal calls differ."""
    clock = FakeClock()
    call = taking(clock, lambda: 1e-3 * (1 + clock.time / 50))
    pair = [Candidate("a", call, [()]), Candidate("b", call, [()])]
    found = measure(pair, CPU, mode="calls", clock=clock)
    assert found["a"].max / found["a"].min > 1.05
    assert found["a"].median == pytest.approx(found["b"].median, rel=0.01)


@pytest.mark.parametrize("mode", ["calls", "sync", "graph"])
def test_inputs_rotate_evenly(mode: str) -> None:
    clock = FakeClock()
    seen: list[int] = []

    def call(number: int) -> None:
        seen.append(number)
        clock.time += (number + 1) * 1e-3

    inputs = [(0,), (1,), (2,)]
    found = measure([Candidate("a", call, inputs)], CPU, mode=mode, clock=clock)["a"]
    assert found.median == pytest.approx(2e-3)
    assert found.input_sets == 3 and found.calls % 3 == 0
    # after the first call, which compiles
    assert seen[1:] == [0, 1, 2] * (len(seen) // 3)


def test_a_graph_of_short_calls_is_repeated_until_replays_are_long() -> None:
    clock = FakeClock()
    found = one(clock, taking(clock, 1e-5), "graph")
    assert clock.graphs == 2
    assert found.median == pytest.approx(1e-5)
    assert found.calls % 200 == 0  # 200 calls of 10 µs last 2 ms
    clock = FakeClock()
    one(clock, taking(clock, 5e-3), "graph")
    assert clock.graphs == 1


def test_each_rounds_state_of_the_gpu_is_kept() -> None:
    clock = FakeClock()
    call = taking(clock, 1e-3)
    found = measure([Candidate(n, call, [()]) for n in "ab"], CPU, mode="calls", clock=clock)
    # a is asked first in round 1 and 3, second in round 2, when b goes first
    assert found["a"].telemetry is not None and found["b"].telemetry is not None
    assert found["a"].telemetry.sm_mhz == (1000.0, 1004.0)
    assert found["b"].telemetry.sm_mhz == (1001.0, 1005.0)
    assert found["a"].telemetry.n == 3


@pytest.mark.parametrize(
    "zeros",
    [
        torch.zeros(4),
        torch.zeros(4, dtype=torch.bfloat16),
        -torch.zeros(4),
        torch.zeros(4).to(torch.float8_e4m3fn),
        (-torch.zeros(4)).to(torch.float8_e4m3fn),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.full((4,), 0x80, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    ],
    ids=str,
)
def test_zeros_are_refused_wherever_they_hide(zeros: torch.Tensor) -> None:
    calls: list[object] = []
    good = torch.rand(4)
    for arguments in ((zeros,), (good, zeros), ({"x": [good, (zeros,)]},)):
        candidate = Candidate("a", lambda *x: calls.append(x), [(good,), arguments])
        with pytest.raises(InputError, match=r"candidate 'a', input set 1, .*all zeros"):
            measure([candidate], CPU, mode="calls", seconds=0.01)
    assert calls == []


def test_data_masks_and_scalars_pass() -> None:
    arguments = (
        torch.rand(4),
        torch.rand(4).to(torch.float8_e4m3fn),
        torch.zeros(4, dtype=torch.bool),
        torch.zeros(4, dtype=torch.int64),
        torch.zeros(()),
        torch.tensor([0.0, 1e-30]),
        torch.full((4,), 0x12, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "text",
        None,
    )
    assert measure([Candidate("a", lambda *x: None, [arguments])], CPU, mode="calls", seconds=0.01)


def test_nonsense_is_refused_before_anything_runs() -> None:
    def fail(*_: object) -> None:
        raise AssertionError("was called")

    good = Candidate("a", fail, [()])
    with pytest.raises(InputError, match="unknown mode 'fast'"):
        measure([good], CPU, mode="fast")
    with pytest.raises(InputError, match="own name"):
        measure([good, good], CPU, mode="calls")
    with pytest.raises(InputError, match="at least one"):
        measure([], CPU, mode="calls")
    with pytest.raises(InputError, match="no inputs"):
        measure([Candidate("a", fail, [])], CPU, mode="calls")
    for seconds, rounds in ((0, 3), (-1, 3), (float("nan"), 3), (float("inf"), 3), (1, 0)):
        with pytest.raises(InputError, match="must be positive"):
            measure([good], CPU, mode="calls", seconds=seconds, rounds=rounds)
    with pytest.raises(InputError, match="not supported"):
        measure([good], torch.device("mps"), mode="calls")


def test_the_cpu_has_no_graphs() -> None:
    with pytest.raises(UnsupportedError, match="mode 'graph' needs a CUDA device"):
        measure([Candidate("a", lambda: None, [()])], CPU, mode="graph", seconds=0.01)


@pytest.mark.parametrize("mode", ["calls", "sync"])
def test_on_the_cpu_times_are_real(mode: str) -> None:
    """Sleeping never ends early, so the shorter time is a hard bound; the upper one leaves room for load."""
    pair = [Candidate(f"{ms}", lambda ms=ms: time.sleep(ms / 1e3), [()]) for ms in (2, 6)]
    found = measure(pair, CPU, mode=mode, seconds=0.05)
    assert found["2"].min >= 2e-3 and found["6"].min >= 6e-3
    assert found["2"].min < 5e-3
    assert found["2"].telemetry is None and found["2"].capture_s is None


def test_rotations_exceed_the_cache_four_times() -> None:
    assert rotations(GIB, 50 * 2**20) == 1
    assert rotations(50 * 2**20, 50 * 2**20) == 4
    assert rotations(6 * 2**20, 50 * 2**20) == 34
    with pytest.raises(InputError, match="0 bytes"):
        rotations(0, 50 * 2**20)


def test_shared_memory_counts_once() -> None:
    """The same tensor passed as many 'sets' stays in the cache, and the figure beside the time shows it."""
    x = torch.rand(1000)
    assert unique_bytes([(x,), (x, x[:10]), ({"x": x},)]) == 4000
    assert unique_bytes([(x,), (x.clone(),), (3, "x")]) == 8000
    found = measure([Candidate("a", lambda x: x + 1, [(x,), (x,)])], CPU, mode="calls", seconds=0.01)["a"]
    assert (found.input_sets, found.input_bytes) == (2, 4000)


def test_an_estimate_is_the_fastest_of_few_passes_and_checks_its_inputs_too() -> None:
    clock = FakeClock()
    costs = iter([50.0, 3e-3, 4e-3, 5e-3, 2e-3, 6e-3, 7e-3])  # the first call compiles
    candidate = Candidate("a", taking(clock, lambda: next(costs)), [()])
    assert estimate(candidate, CPU, mode="calls", clock=clock) == pytest.approx(2e-3)
    with pytest.raises(InputError, match="all zeros"):
        estimate(Candidate("a", taking(clock, 1e-3), [(torch.zeros(4),)]), CPU, mode="calls", clock=clock)
    inputs = [(torch.ones(4),)] * 3
    found = estimate(Candidate("a", taking(clock, 1e-3), inputs), CPU, mode="graph", clock=clock)
    assert found == pytest.approx(1e-3)  # a call, of which a pass has several
