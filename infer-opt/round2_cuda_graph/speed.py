"""Round 2: the same kernels, replayed as one CUDA graph.

python infer-opt/round2_cuda_graph/speed.py --out infer-opt/round2_cuda_graph/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(measure_change(__file__, "The same kernels, replayed as one CUDA graph"))
