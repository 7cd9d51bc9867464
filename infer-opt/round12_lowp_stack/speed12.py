"""Any stacks side by side on two crops, also those of rounds that are plugged in.

cd infer-opt/round12_lowp_stack
python speed12.py --model vitl16 --variants r5_v1,r12+head16 --out speed.json

`--plugin FOLDER:MODULE` reads FOLDER/MODULE.py, whose `STACKS` are stacks by name. The first variant is what
the others are compared with.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from fasteomt.bench import environment
from fasteomt.bench.ceilings import measure_ceilings
from fasteomt.bench.results import Run
from fasteomt.bench.rows import model_rows
from fasteomt.checkpoint import resolve
from fasteomt.cli.round import log_progress, options, show
from fasteomt.cli.script import exit_code
from fasteomt.engine import resolve_device
from fasteomt.errors import InputError, one_line
from fasteomt.files import check_target, write_json
from fasteomt.stacks import Stack, get_stack


def main() -> int:
    p = options("speed12", "Stacks side by side.", "vitl16")
    p.add_argument("--variants", default="r5_v1,bf16,fp16,fp16+head16", help="stacks, with commas")
    p.add_argument("--plugin", action="append", default=[], metavar="FOLDER:MODULE", help="more stacks")
    p.add_argument("--tag", default="", help="a word to find the figures by")
    p.add_argument("--crops", type=int, default=2)
    p.add_argument("--overwrite", action="store_true")
    p.set_defaults(out=None)
    args = p.parse_args()
    log_progress()

    def work() -> None:
        if args.out is not None:
            check_target(args.out, overwrite=args.overwrite)
        if args.crops < 1:
            raise InputError(f"--crops {args.crops}: must be at least 1")
        plugged = plugged_stacks(args.plugin)
        stacks = [plugged[name] if name in plugged else get_stack(name) for name in args.variants.split(",")]
        if len({stack.name for stack in stacks}) < len(stacks):
            raise InputError(f"--variants {args.variants}: name each stack once")
        device = resolve_device(args.device)
        seconds = 0.2 if args.quick else 1.0
        ceilings = measure_ceilings(device, seconds=seconds) if device.type == "cuda" else None
        rows = []
        for name in args.model.split(","):
            checkpoint = resolve(name)
            rows += model_rows(
                checkpoint, checkpoint.spec.short_name, device, stacks, crops=args.crops,
                baseline=stacks[0].name, ceilings=ceilings, seconds=seconds,
            )  # fmt: skip
        command = shlex.join(["python", "speed12.py", *sys.argv[1:]])
        run = Run.build(environment.current(device), command, rows, ())
        show(run)
        if args.out is not None:
            write_json(args.out, {"tag": args.tag, **run.model_dump(mode="json")}, overwrite=args.overwrite)

    return exit_code("speed12", work)


def plugged_stacks(plugins: Iterable[str]) -> dict[str, Stack]:
    """The stacks of plug-ins by name.

    Raises:
        InputError: no such file, or one without STACKS.
    """
    found: dict[str, Stack] = {}
    for plugin in plugins:
        folder, _, module = plugin.rpartition(":")
        path = Path(folder, f"{module}.py")
        if not folder or not path.is_file():
            raise InputError(f"--plugin {plugin}: there is no {path}: name it FOLDER:MODULE")
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(loaded)
        except Exception as error:  # it is the user's, and may raise anything
            raise InputError(f"--plugin {plugin}: {path} fails: {one_line(error)}") from error
        stacks = getattr(loaded, "STACKS", None)
        if not isinstance(stacks, dict) or not all(isinstance(stack, Stack) for stack in stacks.values()):
            raise InputError(f"--plugin {plugin}: {path} must define STACKS, stacks by name")
        found |= stacks
    return found


if __name__ == "__main__":
    sys.exit(main())
