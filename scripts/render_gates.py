"""Write GATES.md from the table of limits.

python scripts/render_gates.py           rewrite it
python scripts/render_gates.py --check   exit 1 where it differs, change nothing
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fasteomt.gates.limits import Limits, Tier, load_limits
from fasteomt.gates.outliers import CHANNELS, FACTOR
from render_tables import table

ROOT = Path(__file__).resolve().parent.parent

TEXT = """\
# Gates

<!-- Written by scripts/render_gates.py from src/fasteomt/gates/limits.toml. -->

A gate says whether a stack still gives the model's masks. It compares the stack with the plain fp32
reference, on the same frames of one clip and on the same device:

```bash
fasteomt gate --model exported_best.pt --video clip.mp4 --truth masks.mkv --stack bf16 --picture differ.png
```

Exit code 4 says that a gate failed. A gate that could not be run is reported as such, never as passed.
Whether a gate passed is always worked out from the measured values and the limits, also when a stored
verdict is read.

## Limits

A plan's tier is that of the narrowest number format in it.

{limits}

## What is measured

**Every IoU** is of a class, between the stack's mask and the reference's; the worst class counts. A class
with fewer than {min_pixels} pixels in the reference's mask of a frame is not judged in that frame, but is
part of the pool over the clip.

**M, masks.** {frames} frames, evenly spaced over the clip. *Cosine*: of the mask logits of all crops and
queries of a frame, accumulated in fp64; infinities and NaN count as -1. *IoU per frame*. The worst frame
counts. Reported beside them, without a limit: the cosine with each query weighted by its probability of
being an object, which tells deviations in queries that make up the mask from those in queries it ignores.

**H, whole clip.** All frames, through the same path as `fasteomt infer`. *Pooled IoU*: intersection over
union, each summed over the clip. *Confidence error*: the confidence of a class in a frame is the mean class
probability over the pixels predicted as it; the error is relative to the reference's, and the worst frame
counts. *IoU to truth lost*: how many points the pooled IoU to the true masks is below the reference's,
where there are true masks. A clip in which the reference sees one class alone proves nothing and is
refused.

**G, graph.** The stack's network captured as one CUDA graph gives the same bits as eager execution. Eager
runs first, then replays over inputs that change and return to the first, so that a stale buffer shows.
Inputs that give equal outputs are refused; eager execution that does not repeat itself fails. It needs a
CUDA device.

**O, outliers.** M and H again, with their limits, of the stack on a model whose weights were rewritten
without changing its function: in every block {channels} channels each of both norms' outputs and of V are
{factor:g} times as large, and the next Linear's columns are divided by as much. The reference is the
original model. A power of two moves exponents alone, so in fp32 the two models give equal results.

## What a verdict belongs to

One model file, one plan, one clip and one GPU, each named in it: SHA-256 of the checkpoint and of the clip,
the plan's hash, the GPU's name; and the version of torch and the digest of the source code that judged.
Verdicts are kept in the user's cache folder (`$FASTEOMT_CACHE` moves it) and are void when any of these
changes.
"""


def document(limits: Limits) -> str:
    """GATES.md."""
    rows = [[" ".join(tier.formats), f"{tier.bits} bits", *_cells(tier)] for tier in limits.tiers]
    header = ["formats", "tier", "M: cosine", "M: IoU per frame", "H: pooled IoU"]
    header += ["H: confidence error", "H: IoU to truth lost", "G: differing values"]
    return TEXT.format(
        limits=table(header, rows),
        min_pixels=limits.min_pixels,
        frames=limits.frames,
        channels=CHANNELS,
        factor=FACTOR,
    )


def _cells(tier: Tier) -> list[str]:
    return [
        f"≥ {tier.masks['min_cosine']:g}",
        f"≥ {tier.masks['min_iou']:g}",
        f"≥ {tier.clip['min_pooled_iou']:g}",
        f"≤ {tier.clip['max_confidence_error_percent']:g} %",
        f"≤ {tier.clip['max_truth_iou_lost_points']:g} points",
        "none",
    ]


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Returns the exit code: 0, or 1 where `--check` finds a difference, 2 for wrong usage."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python scripts/render_gates.py [--check]", file=sys.stderr)
        return 2
    path, wanted = root / "GATES.md", document(load_limits())
    if path.is_file() and path.read_text("utf-8") == wanted:
        return 0
    if arguments:
        print(f"{path} is old: run  python scripts/render_gates.py", file=sys.stderr)
        return 1
    path.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
