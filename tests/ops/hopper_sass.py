"""The instructions of a compiled kernel, as the disassembler in Triton's package shows them."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

needs_nvrtc = pytest.mark.skipif(torch.version.cuda is None, reason="needs a build of torch for CUDA")


def sass(cubin: bytes) -> str:
    triton = pytest.importorskip("triton", reason="its package has the disassembler")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
