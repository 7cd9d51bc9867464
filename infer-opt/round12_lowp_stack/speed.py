"""Round 12: the same kernels in FP16, which keeps three bits more of every value than BF16 does.

python infer-opt/round12_lowp_stack/speed.py --out infer-opt/round12_lowp_stack/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(
        measure_change(
            __file__,
            "The same kernels in FP16",
            against="compile_reduce_overhead",
            work=((2, 1), (2, 2), (1, 1)),
        )
    )
