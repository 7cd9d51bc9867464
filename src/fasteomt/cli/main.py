"""`fasteomt`: registers the commands and turns failures into one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback

import typer
from rich.console import Console
from rich.logging import RichHandler

from fasteomt import __version__
from fasteomt.cli import convert, data, demo, doctor, eval_, infer, plan
from fasteomt.errors import FastEomtError

app = typer.Typer(
    name="fasteomt",
    help="DINOv3 + EoMT semantic segmentation from LightlyTrain checkpoints.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("infer")(infer.infer)
app.command("eval")(eval_.eval_)
app.command("convert")(convert.convert)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")
app.add_typer(plan.app, name="plan")


def _version(value: bool) -> None:
    if value:
        print(f"fasteomt {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """DINOv3 + EoMT semantic segmentation from LightlyTrain checkpoints."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 2 bad input, 3 unsupported, 4 gate failed,
    5 partial result, 130 interrupted. FASTEOMT_DEBUG=1 adds the traceback of a failure."""
    console = Console(stderr=True)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        # The handler's own level: loggers of other packages that are set to DEBUG reach it otherwise.
        handlers=[RichHandler(logging.WARNING, console=console, show_time=False, show_path=False)],
    )
    try:
        code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except FastEomtError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        # Names that the file system refuses can come up wherever a path is looked at.
        where = "" if error.filename is None else f"{str(error.filename)[:80]}: "
        return _fail(f"{where}{error.strerror or error}: check the path", 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except typer.Abort:
        return _fail("interrupted", 130)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # a usage error of click's
            return _fail(f"{error.format_message()}  (see --help)", 2)
        raise


def _fail(message: str, code: int) -> int:
    print(f"fasteomt: error: {' '.join(message.split())}", file=sys.stderr)
    if os.environ.get("FASTEOMT_DEBUG"):
        traceback.print_exc()
    return code


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
