"""What the model computes, op by op: each a package with a plain-torch reference and faster implementations.

An op's package `ops.<op>` defines its `Problem`, a value that says which shapes and dtypes are asked for.
Each of its modules is one implementation and has `unsupported(target, problem)`, a reason or None, and
`run(...)`, which writes into buffers that the caller made. Implementations never import one another.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from fasteomt.errors import UnsupportedError
from fasteomt.ops.target import Target


def implementation(op: str, name: str, target: Target, problem: object) -> ModuleType:
    """The module `fasteomt.ops.<op>.<name>`, if it can do `problem` on `target`.

    Raises:
        UnsupportedError: there is no such implementation, a package that it needs is missing, or it can't do
            this: names what is missing.
    """
    package = importlib.import_module(f"fasteomt.ops.{op}")
    if name not in package.IMPLEMENTATIONS:
        raise UnsupportedError(
            f"{op}: no implementation '{name}': choose one of {', '.join(package.IMPLEMENTATIONS)}"
        )
    try:
        module = importlib.import_module(f"fasteomt.ops.{op}.{name}")
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        raise UnsupportedError(
            f"{op}: implementation '{name}' needs package '{missing}': pip install {missing}"
        ) from None
    reason = module.unsupported(target, problem)
    if reason is not None:
        raise UnsupportedError(f"{op}: implementation '{name}' on {target.arch}: {reason}")
    return module
