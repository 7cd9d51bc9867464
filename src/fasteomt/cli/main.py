"""`fasteomt`: registers the commands and turns failures into one line and an exit code."""

from __future__ import annotations

import contextlib
import io
import logging
import sys

import typer

from fasteomt import __version__
from fasteomt.cli import bench, convert, data, demo, doctor, eval_, gate, infer, plan, tune, warmup
from fasteomt.cli.script import exit_code
from fasteomt.errors import InputError

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
app.command("gate")(gate.gate)
app.command("convert")(convert.convert)
app.command("doctor")(doctor.doctor)
app.command("warmup")(warmup.warmup)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(plan.app, name="plan")
app.add_typer(tune.app, name="tune")


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
    """Run the command line; returns the exit code: 0 done, 1 nobody reads the output any more, 2 bad input,
    3 unsupported, 4 gate failed, 5 partial result, 130 interrupted. FASTEOMT_DEBUG=1 adds the traceback of a
    failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # File names may hold bytes that are no text, and terminals may have ASCII alone.
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, handlers=[_Warnings(logging.WARNING)])
    return exit_code("fasteomt", lambda: _command(arguments))


def _command(arguments: list[str] | None) -> object:
    """What the command returns; failures of click and typer become the project's own."""
    try:
        return app(arguments, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # a usage error of click's
            raise InputError(f"{error.format_message() or 'no command given'}  (see --help)") from error
        raise


class _Warnings(logging.Handler):
    """One unwrapped line a record on what standard error is by then: progress bars put theirs in its place.

    It has a level of its own since loggers of other packages that are set to DEBUG would reach it otherwise.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            message = " ".join(record.getMessage().split())
            print(f"fasteomt: {record.levelname.lower()}: {message}", file=sys.stderr)


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
