"""Attribution on planted events: every kernel to its site, and what has none is counted, never dropped."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

from fasteomt.bench.profile import (
    Event,
    SiteTime,
    attribute,
    events_of,
    marked_sites,
    module_sites,
    profile_sites,
    site_range,
)
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec

WHOLE = Event("range", "fasteomt.profile", 0, 100, "main")


def site(name: str, start: float, end: float, thread: str = "main") -> Event:
    return Event("range", f"site:{name}", start, end, thread)


def op(number: int, start: float, end: float, *, thread: str = "main", backward: bool = False) -> Event:
    return Event("op", "aten::op", start, end, thread, sequence=number, backward=backward)


_ids = itertools.count(1)


def launched(
    at: float, start: float, end: float, *, thread: str = "main", name: str = "cudaLaunchKernel"
) -> list[Event]:
    """A launch and its kernel."""
    number = next(_ids)
    return [
        Event("call", name, at, at + 0.5, thread, correlation=number),
        Event("kernel", "k", start, end, correlation=number),
    ]


def test_kernels_go_to_the_innermost_site() -> None:
    events = [
        WHOLE,
        site("block", 10, 50),
        site("qkv", 20, 30),
        site("proj", 30, 40),
        *launched(12, 60, 61),  # in block, but in neither of its parts
        *launched(25, 61, 63),
        *launched(29.9, 63, 67),
        *launched(30, 67, 75),  # a range's end belongs to the next
        *launched(45, 75, 91),
        *launched(50, 91, 93),  # where the block has ended
    ]
    found = attribute(events)
    assert found.sites == (
        SiteTime("block", "forward", 17, 2),
        SiteTime("qkv", "forward", 6, 2),
        SiteTime("proj", "forward", 8, 1),
    )
    assert (found.kernel_us, found.kernels) == (33, 6)
    assert (found.unattributed_us, found.unattributed_kernels) == (2, 1)


def test_a_site_that_runs_twice_adds_up() -> None:
    events = [WHOLE, site("a", 10, 20), site("a", 30, 40), *launched(15, 50, 51), *launched(35, 51, 54)]
    assert attribute(events).sites == (SiteTime("a", "forward", 4, 2),)


def test_an_optimizers_step_is_a_site_of_its_own() -> None:
    events = [WHOLE, Event("range", "Optimizer.step#AdamW.step", 10, 20, "main"), *launched(15, 50, 53)]
    assert attribute(events).sites == (SiteTime("optimizer", "forward", 3, 1),)


def test_torch_names_an_optimizers_step_as_expected(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([weight])
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = events_of(json.loads((tmp_path / "trace.json").read_text()))
    assert [e.name for e in events if e.kind == "range"] == ["Optimizer.step#AdamW.step"]


def test_what_has_no_site_is_reported() -> None:
    events = [
        WHOLE,
        site("a", 10, 20),
        *launched(15, 20, 21),
        *launched(5, 21, 23),  # before any site
        *launched(15, 23, 27, thread="other"),  # of a thread that is in no site
        Event("kernel", "orphan", 27, 35, correlation=10**6),  # nobody saw its launch
        Event("kernel", "unnumbered", 35, 51),
    ]
    found = attribute(events)
    assert found.sites == (SiteTime("a", "forward", 1, 1),)
    assert (found.unattributed_us, found.unattributed_kernels) == (30, 4)
    assert (found.kernel_us, found.kernels) == (31, 5)


def test_work_of_other_calls_is_left_out() -> None:
    events = [
        WHOLE,
        *launched(-5, -3, 8),  # launched before the call, though it ends in it
        *launched(101, 102, 103),
        Event("kernel", "orphan", -9, -8),
        *launched(50, 99, 120),  # of the call, though it ends after it
    ]
    found = attribute(events)
    assert (found.kernel_us, found.kernels) == (21, 1)
    assert found.span_us == 120


def test_busy_share_counts_overlapping_kernels_once() -> None:
    events = [WHOLE, *launched(1, 10, 30), *launched(2, 20, 40), *launched(3, 25, 28), *launched(4, 90, 100)]
    found = attribute(events)
    assert found.kernel_us == 53
    assert found.busy_share == pytest.approx(0.40)
    assert attribute([WHOLE]).busy_share == 0


def test_the_hosts_waits_are_counted() -> None:
    names = [
        "cudaStreamSynchronize",
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cuStreamSynchronize",
        "cudaMemcpy",
        "cuMemcpyDtoH_v2",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaLaunchKernel",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
    ]
    calls = [Event("call", name, 10 + i, 11 + i, "main") for i, name in enumerate(names)]
    after = Event("call", "cudaDeviceSynchronize", 101, 110, "main")
    assert attribute([WHOLE, *calls, after]).host_waits == {
        "cudaStreamSynchronize": 2,
        "cudaDeviceSynchronize": 1,
        "cudaEventSynchronize": 1,
        "cuStreamSynchronize": 1,
        "cudaMemcpy": 1,
        "cuMemcpyDtoH_v2": 1,
    }


def test_backward_kernels_go_to_the_site_that_they_differentiate() -> None:
    events = [
        WHOLE,
        site("fc1", 10, 20),
        site("fc2", 20, 30),
        op(6, 5, 6),  # bears fc1's number too, since it makes no node itself
        op(6, 12, 14),
        op(7, 22, 24),
        op(8, 40, 41),  # of the loss, in no site
        op(7, 45, 46, thread="other"),  # another thread's numbers are its own
        op(8, 50, 52, thread="autograd", backward=True),
        op(7, 52, 60, thread="autograd", backward=True),
        op(6, 60, 70, thread="autograd", backward=True),
        *launched(51, 70, 71, thread="autograd"),
        *launched(55, 71, 73, thread="autograd"),
        *launched(65, 73, 77, thread="autograd"),
        *launched(13, 61, 62),
        *launched(69, 77, 85, thread="autograd"),
    ]
    found = attribute(events)
    assert set(found.sites) == {
        SiteTime("fc1", "forward", 1, 1),
        SiteTime("fc2", "backward", 2, 1),
        SiteTime("fc1", "backward", 12, 2),
    }
    assert (found.unattributed_us, found.unattributed_kernels) == (1, 1)


def test_the_trace_must_hold_one_call() -> None:
    for wholes in ([], [WHOLE, WHOLE]):
        with pytest.raises(InputError, match="profiled calls"):
            attribute([*wholes, site("a", 1, 2)])


def test_reading_a_trace() -> None:
    def raw(cat: str, name: str, tid: Any, **about: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": 5.25,
            "dur": 2,
            "args": about,
        }

    trace = {
        "traceEvents": [
            raw("user_annotation", "site:a", 7),
            raw("gpu_user_annotation", "site:a", 3),  # the same range's shadow on the GPU
            raw("cpu_op", "aten::mm", 7, **{"Sequence number": 4, "Fwd thread id": 0}),
            raw("cpu_op", "MmBackward0", 8, **{"Sequence number": 4, "Fwd thread id": 1}),
            raw("cuda_runtime", "cudaLaunchKernel", 7, correlation=11),
            raw("cuda_driver", "cuLaunchKernelEx", 7, correlation=12),
            raw("kernel", "gemm", 7, correlation=11),
            raw("gpu_memcpy", "Memcpy DtoH", 7, correlation=13),
            raw("gpu_memset", "Memset", 7, correlation=14),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 11, "pid": 1, "tid": 7, "ts": 5},
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            {"ph": "X", "cat": "Trace", "name": "Profiler", "pid": "Spans", "tid": "P", "ts": 1, "dur": 9},
        ]
    }
    assert events_of(trace) == [
        Event("range", "site:a", 5.25, 7.25, "7"),
        Event("op", "aten::mm", 5.25, 7.25, "7", sequence=4),
        Event("op", "MmBackward0", 5.25, 7.25, "8", sequence=4, backward=True),
        Event("call", "cudaLaunchKernel", 5.25, 7.25, "7", correlation=11),
        Event("call", "cuLaunchKernelEx", 5.25, 7.25, "7", correlation=12),
        Event("kernel", "gemm", 5.25, 7.25, "7", correlation=11),
        Event("kernel", "Memcpy DtoH", 5.25, 7.25, "7", correlation=13),
        Event("kernel", "Memset", 5.25, 7.25, "7", correlation=14),
    ]


def traced(call: Any, tmp_path: Path) -> list[Event]:
    """The events of a real trace of the CPU."""
    with (
        torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler,
        record_function("fasteomt.profile"),
    ):
        call()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    return events_of(json.loads((tmp_path / "trace.json").read_text()))


def test_real_ranges_and_a_real_backward_pass_find_their_sites(tmp_path: Path) -> None:
    """A kernel is planted into each host op of a real trace: it must land where the op ran."""
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
    x = torch.randn(4, 8)

    def step() -> None:
        hidden = model["first"](x)
        with site_range("between"):
            hidden = hidden.tanh()
        model["second"](hidden).sum().backward()

    with marked_sites(model, {"first": "a", "second": "b"}):
        events = traced(step, tmp_path)
    planted = []
    for each in events:
        if each.kind == "op" and each.name in (
            "aten::addmm",
            "aten::tanh",
            "TanhBackward0",
            "AddmmBackward0",
        ):
            middle = (each.start + each.end) / 2
            planted += launched(middle, middle, middle + 1, thread=each.thread)
    found = attribute([*events, *planted])
    assert {(s.site, s.phase): s.kernels for s in found.sites} == {
        ("a", "forward"): 1,
        ("between", "forward"): 1,
        ("b", "forward"): 1,
        ("b", "backward"): 1,
        ("between", "backward"): 1,
        ("a", "backward"): 1,
    }
    assert found.unattributed_kernels == 0


def test_modules_and_methods_are_marked_and_left_as_they_were(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.post(self.inner(x), scale=2)

        def post(self, x: torch.Tensor, *, scale: int) -> torch.Tensor:
            return x * scale

    model, x = Model(), torch.randn(2, 4)
    before = model(x)
    with marked_sites(model, {"inner": "gemm", "post": "frame.post"}):
        events = traced(lambda: model(x), tmp_path)
        assert torch.equal(model(x), before)
    names = [e.name for e in events if e.kind == "range"]
    assert sorted(names) == ["fasteomt.profile", "site:frame.post", "site:gemm"]
    assert "post" not in vars(model)
    assert not model.inner._forward_hooks and not model.inner._forward_pre_hooks
    assert not any(e.name.startswith("site:") for e in traced(lambda: model(x), tmp_path))


def test_what_other_hooks_do_belongs_to_the_module(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Identity()})
    model["a"].register_forward_pre_hook(lambda module, arguments: (arguments[0].neg(),))
    model["a"].register_forward_hook(lambda module, arguments, out: out.exp())
    with marked_sites(model, {"a": "a"}):
        events = traced(lambda: model["a"](torch.ones(1)), tmp_path)
    inside = next(e for e in events if e.name == "site:a")
    for name in ("aten::neg", "aten::exp"):
        found = next(e for e in events if e.name == name)
        assert inside.start <= found.start and found.end <= inside.end


def test_a_module_that_fails_leaves_its_range(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def forward(self) -> None:
            raise ZeroDivisionError

    model = nn.ModuleDict({"bad": Failing(), "good": nn.Identity()})

    def call() -> None:
        with pytest.raises(ZeroDivisionError):
            model["bad"]()
        model["good"](torch.ones(1))

    with marked_sites(model, {"bad": "bad", "good": "good"}):
        ranges = {e.name: e for e in traced(call, tmp_path) if e.kind == "range"}
    assert ranges["site:bad"].end <= ranges["site:good"].start


def test_sites_of_a_model_by_upstreams_names(small_spec: ModelSpec) -> None:
    found = module_sites(small_spec, Eomt(small_spec))
    assert found["backbone.blocks.1.attn"] == "block.1.rope+block.1.attention"
    assert found["backbone.blocks.1.attn.qkv"] == "block.1.qkv"
    assert found["upscale.0.conv1"] == "head.up1.conv"
    # a function there, which this model doesn't have
    assert "postprocess" not in found and "" not in found


def test_upstreams_own_model_has_all_modules(small_spec: ModelSpec) -> None:
    from fasteomt.plan import sites

    task_model = pytest.importorskip(
        "lightly_train._task_models.dinov3_eomt_semantic_segmentation.task_model"
    )
    upstream = task_model.DINOv3EoMTSemanticSegmentation
    for name in ("preprocess_image", "postprocess"):
        assert callable(getattr(upstream, name))
        assert name in {site.upstream for site in sites(small_spec)}


def test_unknown_names_and_devices_are_refused() -> None:
    model = nn.Linear(2, 2)
    with (
        pytest.raises(InputError, match="site fc1: Linear has no module or method 'blocks'"),
        marked_sites(model, {"blocks": "fc1"}),
    ):
        pass
    with pytest.raises(UnsupportedError, match="needs a CUDA device"):
        profile_sites(lambda: None, {}, model, torch.device("cpu"))
