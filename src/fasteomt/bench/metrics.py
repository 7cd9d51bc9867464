"""What can be measured, in which unit, and what it can be compared with."""

from __future__ import annotations

from dataclasses import dataclass

INFERENCE_GATES = ("M", "H", "G", "O")
TRAINING_GATES = ("B", "S")


@dataclass(frozen=True)
class Metric:
    """`rate`: higher is better. `gates`: those that a stack must pass for its figure to count as right; none
    for a part of the work that makes no masks, whose rows need no plan."""

    unit: str
    rate: bool
    gates: tuple[str, ...]


METRICS = {
    "model_ms": Metric("ms", rate=False, gates=INFERENCE_GATES),
    "frame_ms": Metric("ms", rate=False, gates=INFERENCE_GATES),
    "gpu_fps": Metric("fps", rate=True, gates=INFERENCE_GATES),
    "video_fps": Metric("fps", rate=True, gates=INFERENCE_GATES),
    "decode_fps": Metric("fps", rate=True, gates=()),
    "train_img_s": Metric("img/s", rate=True, gates=TRAINING_GATES),
    "step_ms": Metric("ms", rate=False, gates=TRAINING_GATES),
    "kernel_us": Metric("us", rate=False, gates=()),
    "ready_s": Metric("s", rate=False, gates=()),
}

# What stacks are compared with. These have no plan, since their arithmetic isn't ours.
PEERS = frozenset(
    {
        "upstream_script",
        "upstream_predict",
        "eager_bf16",
        "graph_bf16",
        "compile_reduce_overhead",
        "compile_max_autotune",
        "torchao_fp8",
        "tensorrt",
        "R0_fp32",
        "R0_tf32",
        "upstream_bf16",
    }
)
