"""flash-attn-4's private names: there, and taking what is passed to them."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from fasteomt.compat import flash_attention

pytestmark = pytest.mark.skipif(not flash_attention.installed(), reason="needs the extra 'kernels'")


@pytest.mark.parametrize(("module", "names"), flash_attention.PRIVATE_NAMES.items())
def test_names_exist_and_write_into_a_given_tensor(module: str, names: tuple[str, ...]) -> None:
    package, _, file = module.rpartition(".")
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations
    # Read, not imported: importing starts the kernels' compiler, which looks for a GPU.
    text = (Path(found.submodule_search_locations[0]) / f"{file}.py").read_text("utf-8")
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    for name in names:
        parameters = [parameter.arg for parameter in functions[name].args.args]
        assert parameters[:3] == ["q", "k", "v"]
        assert "out" in parameters
