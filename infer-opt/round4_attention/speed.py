"""Round 4: our own attention kernel in the place of cuDNN's.

python infer-opt/round4_attention/speed.py --out infer-opt/round4_attention/results.json
"""

from __future__ import annotations

import sys

from fasteomt.cli.change import measure_change

if __name__ == "__main__":
    sys.exit(measure_change(__file__, "Our own attention kernel in the place of cuDNN's"))
