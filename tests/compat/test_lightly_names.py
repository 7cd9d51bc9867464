"""LightlyTrain's private names: all declared, all there, and touched in `compat` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

from fasteomt.checkpoint import MODEL_CLASS_PATH
from fasteomt.compat import lightly, lightly_training

pytest.importorskip("lightly_train", reason="needs the extra 'train'")

ROOT = Path(__file__).parents[2]
TABLES = (lightly.PRIVATE_NAMES, lightly_training.PRIVATE_NAMES)
NAMES = [(module, name) for table in TABLES for module, names in table.items() for name in names]
# A name in files, which is compared and never imported.
AS_TEXT = MODEL_CLASS_PATH.rpartition(".")[::2]


@pytest.mark.parametrize(("module", "name"), [*NAMES, AS_TEXT])
def test_name_exists(module: str, name: str) -> None:
    attrgetter(name)(import_module(module))


def imported(path: Path) -> Iterator[str]:
    """Dotted name of every import from LightlyTrain's private modules, through `need` too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightly_train._"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            yield from (v for v in [str(node.args[0].value)] if v.startswith("lightly_train._"))


@pytest.mark.parametrize("module", [lightly, lightly_training])
def test_every_import_is_declared(module: ModuleType) -> None:
    table = module.PRIVATE_NAMES
    declared = {*table, *(f"{origin}.{name}" for origin, names in table.items() for name in names)}
    found = set(imported(Path(module.__file__ or "")))
    assert found
    assert found <= declared


def test_nothing_outside_compat_touches_them() -> None:
    touching = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"lightly_train\._[a-z]", path.read_text("utf-8"))
    }
    compat = {"src/fasteomt/compat/lightly.py", "src/fasteomt/compat/lightly_training.py"}
    assert touching == compat | {"src/fasteomt/checkpoint.py"}
    text = (ROOT / "src/fasteomt/checkpoint.py").read_text("utf-8")
    assert re.findall(r"lightly_train\._[\w.]+", text) == [MODEL_CLASS_PATH]
