"""Round 1: 16-bit weights that stay on the GPU, RoPE tables computed once, cuDNN's attention; plain torch.

python infer-opt/round1_torch_cleanup/speed.py --out infer-opt/round1_torch_cleanup/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(
        measure_change(
            __file__,
            "16-bit weights that stay on the GPU, RoPE tables computed once, cuDNN's attention; plain torch",
        )
    )
