"""The timer on a GPU: a known length is measured, equal candidates are equal, cheating shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fasteomt.bench.lock import gpu_lock
from fasteomt.bench.telemetry import sample
from fasteomt.bench.timer import Candidate, Timing, measure, rotations
from fasteomt.errors import InputError, UnsupportedError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
globaltimer = pytest.importorskip("triton.language.extra.cuda").globaltimer

pytestmark = pytest.mark.gpu
MIB = 2**20


@triton.jit
def spin(nanoseconds):
    """Keep one program busy for a time that the GPU's own clock tells, whatever the SM clock is."""
    start = globaltimer()
    now = start
    while now - start < nanoseconds:
        now = globaltimer()


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    device = torch.device("cuda", 0)
    with gpu_lock(device, wait_s=600):
        yield device


def rotated(gpu: torch.device, nbytes: int) -> list[tuple[torch.Tensor]]:
    l2 = torch.cuda.get_device_properties(gpu).L2_cache_size
    return [(torch.randn(nbytes // 4, device=gpu),) for _ in range(rotations(nbytes, l2))]


def one(gpu: torch.device, candidate: Candidate, mode: str) -> Timing:
    return measure([candidate], gpu, mode=mode, seconds=0.3)[candidate.name]


@pytest.mark.parametrize("mode", ["graph", "calls"])
def test_a_known_length_within_two_percent(gpu: torch.device, mode: str) -> None:
    found = one(gpu, Candidate("spin", lambda: spin[(1,)](1_000_000), [()]), mode)
    assert found.median == pytest.approx(1e-3, rel=0.02)


def test_a_synchronised_call_is_no_shorter_than_its_kernel(gpu: torch.device) -> None:
    found = one(gpu, Candidate("spin", lambda: spin[(1,)](1_000_000), [()]), "sync")
    assert 0.999e-3 <= found.median < 1.2e-3


@pytest.mark.parametrize("mode", ["graph", "calls"])
def test_equal_candidates_within_one_percent(gpu: torch.device, mode: str) -> None:
    a, b = (torch.randn(4096, 4096, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    found = measure(
        [Candidate(name, torch.matmul, [(a, b)]) for name in ("first", "second")], gpu, mode=mode, seconds=0.5
    )
    assert found["first"].median == pytest.approx(found["second"].median, rel=0.01)
    assert found["first"].steady and found["second"].steady


def test_an_extra_wait_of_the_host_shows(gpu: torch.device) -> None:
    x = torch.randn(MIB, device=gpu)

    def waits(x: torch.Tensor) -> None:
        torch.relu(x)
        torch.cuda.synchronize()

    pair = [Candidate("plain", torch.relu, [(x,)]), Candidate("waits", waits, [(x,)])]
    found = measure(pair, gpu, mode="calls", seconds=0.3)
    assert found["waits"].median > 1.2 * found["plain"].median


def test_a_cold_cache_shows(gpu: torch.device) -> None:
    sets = rotated(gpu, 8 * MIB)
    pair = [Candidate("warm", torch.relu, sets[:1]), Candidate("cold", torch.relu, sets)]
    found = measure(pair, gpu, mode="graph", seconds=0.3)
    assert found["cold"].median > 1.2 * found["warm"].median
    assert found["cold"].input_bytes >= 4 * torch.cuda.get_device_properties(gpu).L2_cache_size


def test_work_left_on_another_stream_is_found_out(gpu: torch.device) -> None:
    side = torch.cuda.Stream()

    def elsewhere() -> None:
        with torch.cuda.stream(side):
            spin[(1,)](1_000_000)

    with pytest.raises(InputError, match="wait for every side stream"):
        one(gpu, Candidate("elsewhere", elsewhere, [()]), "calls")


def test_what_a_graph_cannot_hold_is_refused_and_harms_nothing(gpu: torch.device) -> None:
    x = torch.randn(16, device=gpu)
    with pytest.raises(UnsupportedError, match="can't be captured"):
        one(gpu, Candidate("item", lambda x: x.sum().item(), [(x,)]), "graph")
    assert one(gpu, Candidate("sum", torch.sum, [(x,)]), "graph").median > 0


def test_tensors_of_a_gpu_are_not_timed_on_the_cpu(gpu: torch.device) -> None:
    candidate = Candidate("relu", torch.relu, [(torch.randn(16, device=gpu),)])
    with pytest.raises(InputError, match="is on cuda:0"):
        measure([candidate], torch.device("cpu"), mode="calls", seconds=0.01)


def test_a_call_that_hides_the_gpu_is_waited_for_on_the_cpu(gpu: torch.device) -> None:
    candidate = Candidate("spin", lambda: spin[(1,)](5_000_000), [()])
    found = measure([candidate], torch.device("cpu"), mode="calls", seconds=0.1)["spin"]
    assert found.median >= 4.9e-3


def test_the_gpus_state_under_load_is_recorded(gpu: torch.device) -> None:
    idle = sample(gpu)
    assert idle is not None and idle.celsius is not None
    a = torch.randn(8192, 8192, device=gpu, dtype=torch.bfloat16)
    found = one(gpu, Candidate("gemm", torch.matmul, [(a, a)]), "graph").telemetry
    assert found is not None and found.n == 3
    assert found.sm_mhz is not None and found.sm_mhz[0] > 500
    assert "gpu_idle" not in found.reasons
