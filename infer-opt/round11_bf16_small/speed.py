"""Round 11: what is left of torch's kernels around the blocks, and the norms in them.

python infer-opt/round11_bf16_small/speed.py --out infer-opt/round11_bf16_small/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(
        measure_change(
            __file__,
            "What is left of torch's kernels around the blocks, and the norms in them",
            against="compile_reduce_overhead",
        )
    )
