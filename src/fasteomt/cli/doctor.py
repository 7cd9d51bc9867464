"""`fasteomt doctor`: what this machine can run, what is missing and how to get it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from fasteomt.cli.options import JsonOption
from fasteomt.cli.output import output

if TYPE_CHECKING:
    from fasteomt.capabilities import Capabilities, Package


def doctor(as_json: JsonOption = False) -> None:
    """Show devices, versions and number formats of this machine, what is missing and how to get it."""
    from fasteomt.capabilities import probe  # pulls in torch, which other commands' --help needn't wait for

    found = probe()
    if as_json:
        states = [asdict(p) | {"state": p.state, "remedy": p.remedy} for p in found.packages]
        print(json.dumps(asdict(found) | {"packages": states}, indent=2))
        return
    console = output()
    for table in (_system(found), _formats(found), _packages(found.packages), _codecs(found)):
        console.print(table)
        console.print()
    # Unwrapped, so that commands can be copied.
    console.print("[bold]Not installed, and how to get it[/bold]")
    for line in _missing(found.packages) or ["nothing"]:
        console.print(f"- {escape(line)}", soft_wrap=True)
    console.print("\n[bold]Wrong, and what to do[/bold]")
    for line in found.problems or ["nothing"]:
        console.print(f"- {escape(line)}", soft_wrap=True)


def _missing(packages: Iterable[Package]) -> list[str]:
    """One line for each command that brings packages."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for package in packages:
        if package.state == "missing":
            lacking.setdefault((package.use, package.remedy), []).append(package.name)
    return [f"{', '.join(names)} ({use}): {remedy}" for (use, remedy), names in lacking.items()]


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", title_style="bold", header_style="dim")
    table.box = None
    table.columns[0].no_wrap = True
    return table


def _add(table: Table, rows: Iterable[tuple[str, ...]]) -> Table:
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _system(found: Capabilities) -> Table:
    cuda = f"built for CUDA {found.torch_cuda}" if found.torch_cuda else "CPU build"
    if found.driver_cuda is None:
        driver = "none found"
    else:
        driver = f"{found.driver or 'version unknown'}, serves CUDA {found.driver_cuda}"
    rows = [
        ("fasteomt", found.fasteomt or "not installed as a package"),
        ("Python", found.python),
        ("platform", found.platform),
        ("CPU", f"{found.cpu}, {found.cpu_cores} cores"),
        ("torch", f"{found.torch}, {cuda}"),
        ("NVIDIA driver", driver),
    ]
    for device in found.devices:
        usable = "not usable, see below" if device.problem else "usable"
        rows.append(
            (f"cuda:{device.index}", f"{device.name}, {device.arch}, {device.memory_gib} GiB, {usable}")
        )
    if not found.devices:
        rows.append(("GPU", "none that torch can see; everything runs on the CPU, slowly"))
    table = _table("System", "", "")
    table.show_header = False
    return _add(table, rows)


def _formats(found: Capabilities) -> Table:
    rows = ((f.device, f.format, "runs" if f.runs else "no", f.note) for f in found.formats)
    return _add(_table("Number formats, each tried with one matmul", "device", "format", "", "why not"), rows)


def _packages(packages: Iterable[Package]) -> Table:
    states = {"ok": "", "missing": "not installed", "mismatch": "wrong version"}
    rows = ((p.name, p.version or "-", p.wanted or "any", p.use, states[p.state]) for p in packages)
    return _add(_table("Packages", "package", "installed", "wanted", "for", ""), rows)


def _codecs(found: Capabilities) -> Table:
    rows = ((c.name, c.use, "yes" if c.available else "no") for c in found.codecs)
    return _add(_table(f"Codecs (PyAV, FFmpeg {found.ffmpeg})", "codec", "", "there"), rows)
