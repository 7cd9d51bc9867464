"""Results as a harness would build them: a stack that is compared with a peer and with its parent's stack."""

from __future__ import annotations

from typing import Any

from fasteomt.bench.results import Environment, GateRecord, Measured, RoundResults, Run

PLAN, PARENT_PLAN = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


def environment(gpu: str = "NVIDIA H200", **changes: Any) -> Environment:
    known = {"gpu": gpu, "arch": "sm_90", "driver": "580.159", "torch": "2.11.0", "triton": "3.6.0"}
    made = {"commit": "0123456789abcdef", "source": "0" * 64, "date": "2026-01-02T03:04:05Z"}
    return Environment(**known | made | changes)


def measured(stack: str, median: float | None, **changes: Any) -> Measured:
    """A model_ms row of two crops."""
    spread = {} if median is None else {"min": 0.9 * median, "max": 1.1 * median, "n": 3}
    row = {"model": "vitl16", "stack": stack, "plan": None, "metric": "model_ms", "crops": 2, "frames": 1}
    row |= {"batch": 1, "streams": 1, "by": "native", "median": median}
    return Measured(**row | spread | changes)


def gate(name: str, **changes: Any) -> GateRecord:
    record = {"gate": name, "model": "vitl16", "plan": PLAN, "checkpoint": "1" * 64, "clip": "2" * 64}
    return GateRecord(**record | {"passed": True, "values": {"worst_iou": 0.99}} | changes)


GATES = tuple(gate(name) for name in "MHGO")
ROWS = (
    measured("graph_bf16", 9.0),
    measured("r1", 6.0, plan=PARENT_PLAN, baseline="graph_bf16"),
    measured("r2", 4.0, plan=PLAN, baseline="graph_bf16", floor=2.5, peak_mib=900.0),
    measured("r2", 4.0, plan=PLAN, baseline="r1", floor=2.5, peak_mib=900.0),
)


def run(
    rows: tuple[Measured, ...] = ROWS, gates: tuple[GateRecord, ...] = GATES, **environment_changes: Any
) -> Run:
    return Run.build(environment(**environment_changes), "python speed.py --model vitl16", rows, gates)


def results(*runs: Run, **changes: Any) -> RoundResults:
    known = {"round": "infer-opt/round2_fused", "title": "fused norms", "kind": "change"}
    return RoundResults(**known | {"parent": "round1_graph", "runs": runs or (run(),)} | changes)
