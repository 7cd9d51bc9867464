"""Which implementation is fastest where, as measured: tables by GPU.

Some ship with the package; what `fasteomt tune kernels` measures on this machine goes before them.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from fasteomt.cache import cache_root
from fasteomt.capabilities import hardware_name
from fasteomt.errors import InputError, UnsupportedError, one_line
from fasteomt.files import write_json
from fasteomt.ops import implementation
from fasteomt.ops.target import Target

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).resolve().parent.parent / "assets" / "kernels"

# A launch configuration as JSON has it; None where an implementation has no choice.
Config = dict[str, Any] | None


def problem_key(problem: object) -> str:
    """Names an op's problem, e.g. 'm=2058,n=4096,k=1024,dtype=bfloat16,epilogue=gelu,head_dim=0,...'."""
    assert is_dataclass(problem)
    return ",".join(f"{field.name}={_text(getattr(problem, field.name))}" for field in fields(problem))


# What grows with the number of crops, and the formats that the same kernels compute in the same time.
_SIZE, _FORMAT = re.compile(r"\b(m|crops)=(\d{1,12})\b"), re.compile(r"\bb?float16\b")


def _family(key: str) -> str:
    return _FORMAT.sub("16 bit", _SIZE.sub(r"\1=any", key))


def _distance(key: str, other: str) -> tuple[float, bool]:
    """Of two problems of one family: how many times larger, then whether formats differ."""
    sizes = [int(found.group(2)) for found in map(_SIZE.search, (key, other)) if found]
    apart = max(sizes) / max(1, min(sizes)) if sizes else 1.0
    return apart, _FORMAT.findall(key) != _FORMAT.findall(other)


def _text(value: object) -> str:
    if is_dataclass(value):
        return f"({problem_key(value)})"
    return str(value).removeprefix("torch.")


@dataclass(frozen=True)
class Entry:
    """An implementation's best on a problem (`problem_key`): its configuration and microseconds a call."""

    op: str
    problem: str
    implementation: str
    config: Config
    us: float


@dataclass(frozen=True)
class Table:
    """What was measured on GPUs of the name `gpu`, with which versions, when (UTC)."""

    gpu: str = ""
    torch: str = ""
    triton: str | None = None
    date: str = ""
    entries: tuple[Entry, ...] = ()

    @cached_property
    def _ranked(self) -> dict[tuple[str, str], list[Entry]]:
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.us):
            found.setdefault((entry.op, entry.problem), []).append(entry)
        return found

    @cached_property
    def _relatives(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for op, key in self._ranked:
            found.setdefault((op, _family(key)), []).append(key)
        return found

    def ranked(self, op: str, problem: object) -> list[Entry]:
        """All that was measured on a problem, the fastest first.

        Where nothing was, on the one nearest in size that differs in size and 16-bit format alone.
        """
        key = problem_key(problem)
        if (op, key) in self._ranked:
            return self._ranked[op, key]
        relatives = self._relatives.get((op, _family(key)), [])
        if not relatives:
            return []
        return self._ranked[op, min(relatives, key=lambda other: _distance(key, other))]

    def best(self, op: str, problem: object) -> tuple[str, Config] | None:
        """The fastest implementation and its configuration; None if nothing was measured."""
        found = self.ranked(op, problem)
        return (found[0].implementation, found[0].config) if found else None

    def config_for(self, op: str, name: str, problem: object) -> Config:
        """The best configuration of implementation `name`; None if there is none."""
        found = self.ranked(op, problem)
        return next((entry.config for entry in found if entry.implementation == name), None)

    def over(self, other: Table) -> Table:
        """This table, with `other`'s entries on problems that this one has none on."""
        mine = {(entry.op, entry.problem) for entry in self.entries}
        rest = tuple(entry for entry in other.entries if (entry.op, entry.problem) not in mine)
        return Table(self.gpu, self.torch, self.triton, self.date, self.entries + rest)

    def write(self, path: Path, *, overwrite: bool = False) -> None:
        """Write JSON.

        Raises:
            InputError: it can't be written, or is there already.
        """
        write_json(path, asdict(self), overwrite=overwrite)

    @classmethod
    def from_json(cls, text: str) -> Table:
        """Inverse of `write`.

        Raises:
            InputError: not a table.
        """
        try:
            raw = json.loads(text)
            table = cls(**(raw | {"entries": tuple(Entry(**entry) for entry in raw["entries"])}))
            for entry in table.entries:
                names = (entry.op, entry.problem, entry.implementation)
                config_fits = entry.config is None or isinstance(entry.config, dict)
                if not (all(isinstance(name, str) for name in names) and config_fits and entry.us > 0):
                    raise ValueError(f"entry {entry}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"not a table of kernels: {type(error).__name__}: {one_line(error)}") from None
        return table


def table_file(gpu: str, folder: Path | None = None) -> Path:
    """A GPU's table in `folder`, by default the user's: 'NVIDIA H200' is in nvidia-h200.json."""
    words = "".join(letter if letter.isalnum() else " " for letter in gpu.lower()).split()
    return (folder or cache_root() / "kernels") / f"{'-'.join(words)}.json"


def read_table(path: Path) -> Table:
    """A table's file; without entries if there is none. What can't be read is told in one line, once."""
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError:
        return Table()


@lru_cache(maxsize=8)
def _read(path: Path, modified: int) -> Table:
    try:
        return Table.from_json(path.read_text("utf-8"))
    except (OSError, ValueError, InputError) as error:
        logger.warning("%s: ignored: %s: remove it or run  fasteomt tune kernels", path, one_line(error))
        return Table()


def load_table(gpu: str) -> Table:
    """What is known of GPUs of this name: the user's measurements before the shipped ones."""
    shipped = read_table(table_file(gpu, SHIPPED))
    try:
        return read_table(table_file(gpu)).over(shipped)
    except InputError:  # the user has no place for one
        return shipped


def table_of(device: torch.device) -> Table:
    """What is known of `device`; nothing of a CPU."""
    return load_table(hardware_name(device)) if device.type == "cuda" else Table()


def table_for(target: Target) -> Table:
    """What is known of the GPU here that is `target`; nothing if there is none."""
    if target.arch == "cpu" or not torch.cuda.is_available():
        return Table()
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return next((table_of(device) for device in devices if Target.of(device) == target), Table())


def tuned_config(table: Table, target: Target, op: str, name: str, problem: object) -> object | None:
    """What implementation `name` is to be run with, one of its `candidates`; None for its own choice."""
    found = table.config_for(op, name, problem)
    return None if found is None else _candidate(target, op, name, problem, json.dumps(found, sort_keys=True))


@cache
def _candidate(target: Target, op: str, name: str, problem: object, wanted: str) -> object | None:
    """None if a table, made by another version, names what isn't a candidate any more."""
    module = implementation(op, name, target, problem)
    for config in module.candidates(target, problem) if hasattr(module, "candidates") else ():
        if json.dumps(asdict(config), sort_keys=True) == wanted:
            return config
    return None


def usable(target: Target, op: str, name: str, problem: object) -> bool:
    """Whether implementation `name` is here and can do this."""
    try:
        implementation(op, name, target, problem)
    except UnsupportedError:
        return False
    return True
