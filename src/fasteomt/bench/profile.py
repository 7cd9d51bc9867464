"""Where a call's time on the GPU goes, by site of the model.

Ranges around the model's modules say which site the host was in when it launched a kernel. A kernel of the
backward pass belongs to the site whose forward operation it differentiates.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.plan import sites

_SITE = "site:"
_OPTIMIZER = "Optimizer.step#"  # torch's own range around every optimizer's step
_WHOLE = "fasteomt.profile"
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_DRIVER_WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")


@dataclass(frozen=True)
class Event:
    """Something that a profiler saw; times in µs.

    kind: 'range' (named by the program), 'op' (torch's, on the host), 'call' (of the CUDA API) or 'kernel'
        (on the GPU; copies and fills too).
    thread: of the host; means nothing for kernels.
    correlation: the same for a kernel and the call that launched it.
    sequence, backward: of an op: the same number for a differentiable op and its backward.
    """

    kind: str
    name: str
    start: float
    end: float
    thread: str = ""
    correlation: int | None = None
    sequence: int | None = None
    backward: bool = False


@dataclass(frozen=True)
class SiteTime:
    """Time of a site's kernels, copies and fills on the GPU, and their number.

    phase: 'forward' or 'backward'.
    """

    site: str
    phase: str
    kernel_us: float
    kernels: int


@dataclass(frozen=True)
class Profile:
    """A call's account: `sites` in the order of their first launch, then what belongs to none of them.

    kernel_us: of all kernels, which is the sites' and the unattributed together.
    span_us: from the call's start to its end or its last kernel's. busy_share: the part of it in which
        any kernel ran. host_waits: how often the host waited for the GPU, by the CUDA call's name.
    """

    sites: tuple[SiteTime, ...]
    unattributed_us: float
    unattributed_kernels: int
    kernel_us: float
    kernels: int
    span_us: float
    busy_share: float
    host_waits: Mapping[str, int]


def module_sites(spec: ModelSpec, model: nn.Module) -> dict[str, str]:
    """Which site each module or method of `model` is, by LightlyTrain's names, as far as the model has them.

    Where one holds several sites, their names are joined by '+'.
    """
    found: dict[str, list[str]] = {}
    for site in sites(spec):
        if site.upstream and _target(model, site.upstream) is not None:
            found.setdefault(site.upstream, []).append(site.name)
    return {name: "+".join(names) for name, names in found.items()}


def profile_sites(
    call: Callable[[], object],
    module_sites: Mapping[str, str],
    model: nn.Module,
    device: torch.device,
    *,
    nvtx: bool = False,
    warmups: int = 3,
) -> Profile:
    """Profile one `call`, which runs `model`, after `warmups` others.

    Args:
        module_sites: site by name of a module or method of `model`; the function of that name gives it.
        nvtx: mark the sites with NVTX ranges too, for Nsight Systems.

    Raises:
        UnsupportedError: not a CUDA device; InputError: the model has no module of that name.
    """
    with marked_sites(model, module_sites, nvtx=nvtx):
        return profile_call(call, device, warmups=warmups)


def profile_call(call: Callable[[], object], device: torch.device, *, warmups: int = 3) -> Profile:
    """Profile one `call`, which marks its sites by `site_range` itself, after `warmups` others.

    Raises:
        UnsupportedError: not a CUDA device.
    """
    if device.type != "cuda":
        raise UnsupportedError(f"a profile by site needs a CUDA device, not {device}: see  fasteomt doctor")
    with torch.cuda.device(device):
        for _ in range(warmups):
            call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            with record_function(_WHOLE):
                call()
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return attribute(events_of(trace))


@contextmanager
def site_range(site: str, *, nvtx: bool = False) -> Iterator[None]:
    """Mark what the block launches as belonging to `site`, for profilers."""
    with ExitStack() as stack:
        stack.enter_context(record_function(_SITE + site))
        if nvtx:
            stack.enter_context(torch.cuda.nvtx.range(site))
        yield


@contextmanager
def marked_sites(model: nn.Module, module_sites: Mapping[str, str], *, nvtx: bool = False) -> Iterator[None]:
    """Put a `site_range` around each of the model's named modules and methods, for the block's length.

    Raises:
        InputError: the model has nothing of that name.
    """
    with ExitStack() as marks:
        for name, site in module_sites.items():
            target = _target(model, name)
            if target is None:
                raise InputError(f"site {site}: {type(model).__name__} has no module or method '{name}'")
            if isinstance(target, nn.Module):
                _mark_module(target, site, nvtx, marks)
            else:
                _mark_method(model, name, site, nvtx, marks)
        yield


def _target(model: nn.Module, name: str) -> Any:
    """The module or the method of that name; None if there is neither."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        method = getattr(model, name, None)
        return method if callable(method) else None


def _mark_module(module: nn.Module, site: str, nvtx: bool, marks: ExitStack) -> None:
    open_ranges: list[ExitStack] = []

    def enter(*_: object) -> None:
        opened = ExitStack()
        opened.enter_context(site_range(site, nvtx=nvtx))
        open_ranges.append(opened)

    def leave(*_: object) -> None:
        open_ranges.pop().close()

    # First in, last out, so that other hooks' work counts too; left even when the module fails.
    marks.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
    marks.callback(module.register_forward_hook(leave, always_call=True).remove)


def _mark_method(model: nn.Module, name: str, site: str, nvtx: bool, marks: ExitStack) -> None:
    method = getattr(model, name)

    def marked(*arguments: Any, **named: Any) -> Any:
        with site_range(site, nvtx=nvtx):
            return method(*arguments, **named)

    own = name in vars(model)
    setattr(model, name, marked)
    marks.callback(setattr, model, name, method) if own else marks.callback(delattr, model, name)


def events_of(trace: Mapping[str, Any]) -> list[Event]:
    """The events of a trace in Chrome's format, as torch's profiler writes it."""
    kinds = {
        "user_annotation": "range",
        "cpu_op": "op",
        "cuda_runtime": "call",
        "cuda_driver": "call",
        "kernel": "kernel",
        "gpu_memcpy": "kernel",
        "gpu_memset": "kernel",
    }
    out = []
    for raw in trace["traceEvents"]:
        kind = kinds.get(raw.get("cat", ""))
        if kind is None or raw.get("ph") != "X":
            continue
        about, start = raw.get("args", {}), float(raw["ts"])
        out.append(
            Event(
                kind,
                raw["name"],
                start,
                start + float(raw["dur"]),
                thread=str(raw["tid"]),
                correlation=about.get("correlation"),
                sequence=about.get("Sequence number"),
                backward=about.get("Fwd thread id", 0) != 0,
            )
        )
    return out


def attribute(events: Sequence[Event]) -> Profile:
    """Give every kernel to a site; those that can't be given are counted as unattributed.

    A kernel goes to the innermost site range that its launch lies in, on the same thread; an optimizer's
    step is the site 'optimizer'. If there is none, and the launch lies in a backward op, it goes to the site
    of the forward op with the same sequence number.

    Raises:
        InputError: the events don't hold exactly one profiled call.
    """
    wholes = [e for e in events if e.kind == "range" and e.name == _WHOLE]
    if len(wholes) != 1:
        raise InputError(f"the trace holds {len(wholes)} profiled calls: profile one at a time")
    whole = wholes[0]
    calls = [e for e in events if e.kind == "call" and whole.start <= e.start < whole.end]
    places = _Places(events, whole.thread)
    place_of = {call.correlation: places.of(call) for call in calls if call.correlation is not None}
    elsewhere = {e.correlation for e in events if e.kind == "call"} - place_of.keys()

    totals: dict[tuple[str, str] | None, tuple[float, int]] = {None: (0.0, 0)}
    kernels = []
    for kernel in sorted((e for e in events if e.kind == "kernel"), key=lambda e: e.start):
        place = None
        if kernel.correlation in place_of:
            place = place_of[kernel.correlation]
        # Launched before or after the call. Whose launch nobody saw counts from the call's start on.
        elif kernel.start < whole.start or (
            kernel.correlation is not None and kernel.correlation in elsewhere
        ):
            continue
        kernels.append(kernel)
        us, count = totals.get(place, (0.0, 0))
        totals[place] = us + kernel.end - kernel.start, count + 1
    unattributed_us, unattributed = totals.pop(None)
    span = max([whole.end, *(kernel.end for kernel in kernels)]) - whole.start
    return Profile(
        sites=tuple(SiteTime(*place, us, count) for place, (us, count) in totals.items() if place),
        unattributed_us=unattributed_us,
        unattributed_kernels=unattributed,
        kernel_us=unattributed_us + sum(us for us, _ in totals.values()),
        kernels=len(kernels),
        span_us=span,
        busy_share=_covered(kernels) / span if span > 0 else 0.0,
        host_waits=dict(Counter(call.name for call in calls if _waits(call.name))),
    )


class _Places:
    """Finds the site and the phase that a moment on a host thread belongs to."""

    def __init__(self, events: Sequence[Event], forward_thread: str) -> None:
        self._ranges = _Nesting(
            e for e in events if e.kind == "range" and e.name.startswith((_SITE, _OPTIMIZER))
        )
        ops = [e for e in events if e.kind == "op" and e.sequence is not None]
        self._backward = _Nesting(e for e in ops if e.backward)
        # Sequence numbers are a thread's own; the last op to bear one is the one that autograd recorded.
        forward = [e for e in ops if not e.backward and e.thread == forward_thread]
        self._forward = {e.sequence: e for e in sorted(forward, key=lambda e: e.start)}

    def of(self, call: Event) -> tuple[str, str] | None:
        inside = self._ranges.innermost(call)
        if inside is not None:
            return _site(inside), "forward"
        backward = self._backward.innermost(call)
        forward = None if backward is None else self._forward.get(backward.sequence)
        inside = None if forward is None else self._ranges.innermost(forward)
        return None if inside is None else (_site(inside), "backward")


class _Nesting:
    """Spans that nest on each thread, as ranges and ops do."""

    def __init__(self, spans: Iterable[Event]) -> None:
        self._by_thread: dict[str, list[Event]] = {}
        self._parent: dict[Event, Event | None] = {}
        for span in sorted(spans, key=lambda e: (e.start, -e.end)):
            self._parent[span] = self.innermost(span)
            self._by_thread.setdefault(span.thread, []).append(span)

    def innermost(self, event: Event) -> Event | None:
        """The span around `event`'s start on its thread that began last."""
        spans = self._by_thread.get(event.thread, [])
        at = bisect_right(spans, event.start, key=lambda span: span.start)
        span = spans[at - 1] if at else None
        while span is not None and span.end <= event.start:
            span = self._parent[span]
        return span


def _site(span: Event) -> str:
    return "optimizer" if span.name.startswith(_OPTIMIZER) else span.name.removeprefix(_SITE)


def _covered(kernels: Iterable[Event]) -> float:
    """Length of the union of the kernels' times, which streams may overlap."""
    total, reached = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda e: e.start):
        total += max(0.0, kernel.end - max(kernel.start, reached))
        reached = max(reached, kernel.end)
    return total


def _waits(name: str) -> bool:
    """Whether a CUDA call makes the host wait: a synchronisation, or a copy that isn't asynchronous."""
    blocking_copy = name.startswith(("cudaMemcpy", "cuMemcpy")) and "Async" not in name
    return name in _WAITS or name in _DRIVER_WAITS or blocking_copy
