"""Round 3: products take GELU and RoPE along; adding to the stream and the next norm are one kernel.

python infer-opt/round3_fusion/speed.py --out infer-opt/round3_fusion/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(
        measure_change(
            __file__,
            "GELU and RoPE in the products' epilogues, adding and norm in one kernel",
        )
    )
