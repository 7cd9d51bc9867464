"""Round 5: products that lead back to the residual stream add to it themselves, in fp32.

python infer-opt/round5_gemm/speed.py --out infer-opt/round5_gemm/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(
        measure_change(
            __file__, "Products that lead back to the residual stream add to it themselves, in fp32"
        )
    )
