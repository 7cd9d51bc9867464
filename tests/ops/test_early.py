"""Early launches: kernels that are launched so wait for their inputs; threads decide for themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fasteomt import ops
from fasteomt.ops import early

OPS = Path(ops.__file__).parent
LAUNCHERS = sorted(path for path in OPS.rglob("*.py") if "**early()" in path.read_text("utf-8"))


def test_this_thread_alone_launches_as_usual() -> None:
    pytest.importorskip("triton", reason="needs Triton")
    assert early.early() == {"launch_pdl": True}
    with early.ordinary_launches():
        assert early.early() == {} and not early.starts_early()
        with early.ordinary_launches():
            pass
        assert not early.starts_early()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(early.starts_early).result()
    assert early.starts_early()


def test_what_fails_meanwhile_changes_nothing() -> None:
    with pytest.raises(ValueError, match="broken"), early.ordinary_launches():
        raise ValueError("broken")
    assert early.starts_early()


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.parent.name)
def test_every_kernel_that_is_launched_early_waits(path: Path) -> None:
    """One that didn't would read what its predecessor has yet to write: nothing else would tell."""
    sources = [path, *path.parent.glob(f"{path.stem}_kernel.py")]
    called = {
        node.func.id
        for source in sources
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert {"wait_for_inputs", "let_next_start"} <= called


def test_there_are_such_kernels() -> None:
    assert len(LAUNCHERS) >= 8


def test_without_triton_everything_else_can_be_imported() -> None:
    """Builds of torch for CPUs come without it."""
    modules = ("engine", "stacks", "predictor", "bench.profile_rows", "ops.linear.cuda", "ops.attention.cuda")
    code = "import sys; sys.modules['triton'] = None" + "".join(f"; import fasteomt.{m}" for m in modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
