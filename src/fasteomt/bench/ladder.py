"""The rounds of the ladders in a checkout: what each changes, and running all of them on this machine.

A round of kind 'change' has a patch.py with `PARENT`, the folder's name of the round that it changes (None:
it starts from stack fp32), and `change(stack) -> stack`.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from fasteomt.errors import InputError, PartialResultError
from fasteomt.stacks import Stack, get_stack

SCRIPT = "speed.py"
PATCH = "patch.py"


def ladders(root: Path) -> list[Path]:
    """The folders that hold rounds."""
    return sorted({path.parent for path in root.glob("*/round[0-9]*") if path.is_dir()})


def rounds(ladder: Path) -> list[Path]:
    """The folders of a ladder's rounds, in order of their numbers."""
    found = [path for path in ladder.glob("round[0-9]*") if path.is_dir()]
    return sorted(found, key=lambda path: (int(re.findall(r"\d+", path.name)[0]), path.name))


def patch_of(folder: Path) -> ModuleType:
    """A round's patch.py as a module.

    Raises:
        InputError: the round has none, so it changes no stack.
    """
    path = folder / PATCH
    if not path.is_file():
        raise InputError(f"{folder.name}: has no {PATCH}, so it makes no stack")
    spec = importlib.util.spec_from_file_location(f"patch_of_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stack_of(folder: Path) -> Stack:
    """The stack that a round makes: the changes of its parents and its own, one after the other.

    Raises:
        InputError: a round of the line has no patch.py.
    """
    patch = patch_of(folder)
    parent = get_stack("fp32") if patch.PARENT is None else stack_of(folder.parent / patch.PARENT)
    changed: Stack = patch.change(parent)
    return changed


def run_rounds(
    root: Path, options: Sequence[str] = (), *, quick: bool = False, starting: Callable[[Path], None]
) -> list[Path]:
    """Run every round's speed.py, one after the other, each in a process of its own.

    Args:
        options: for each of them. quick: short timings, whose results go to results.local.json.
        starting: called with a round's folder before it runs.

    Returns:
        The results files that were written.

    Raises:
        InputError: there is no round below `root`. PartialResultError: some failed; the others are written.
    """
    scripts = [
        folder / SCRIPT for ladder in ladders(root) for folder in rounds(ladder) if (folder / SCRIPT).exists()
    ]
    if not scripts:
        raise InputError(f"{root}: holds no */round*/{SCRIPT}: give the root of a checkout")
    written: list[Path] = []
    failed: list[Path] = []
    for script in scripts:
        starting(script.parent)
        out = script.with_name("results.local.json" if quick else "results.json")
        command = [sys.executable, str(script.relative_to(root)), "--out", str(out.relative_to(root))]
        done = subprocess.run([*command, *(["--quick"] if quick else []), *options], cwd=root, check=False)
        (written if done.returncode == 0 else failed).append(out)
    if failed:
        names = ", ".join(path.parent.name for path in failed)
        raise PartialResultError(
            f"{len(failed)} of {len(scripts)} rounds failed ({names}): see above for why"
        )
    return written
