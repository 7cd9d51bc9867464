"""What a gate found, about what, and the report that holds all verdicts of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fasteomt.errors import FastEomtError, InputError, brief, one_line
from fasteomt.gates.limits import broken
from fasteomt.plan import Plan

GATES = ("M", "H", "G", "O")


class GateFailed(FastEomtError):
    """A stack whose masks are no longer the model's. Exit code 4."""

    exit_code = 4


@dataclass(frozen=True)
class Subject:
    """What was judged, and with what.

    `plan`: the plan's hash; `checkpoint`, `clip`, `truth`: SHA-256 (hex), `truth` None without true masks;
    `gpu`: the hardware's name, the CPU's where no GPU was used; `source`: digest of the code that judged.
    """

    model: str
    stack: str
    plan: str
    checkpoint: str
    clip: str
    truth: str | None
    gpu: str
    torch: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """One gate. Whether it passed is never stored: it follows from `values` and `limits`.

    `not_run`: why there are no values; such a gate neither passed nor failed.

    Raises:
        InputError: unknown gate, a value that is no finite number, a limit without a value, or no limits.
    """

    gate: str
    subject: Subject
    values: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    not_run: str | None = None

    def __post_init__(self) -> None:
        if self.gate not in GATES:
            raise InputError(f"unknown gate {brief(self.gate)}: there are {', '.join(GATES)}")
        for name, value in (*self.values.items(), *self.limits.items()):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"gate {self.gate}: {name} is {brief(value)}: must be a finite number")
        if self.not_run is None and not self.limits:
            raise InputError(f"gate {self.gate}: has no limits: nothing was judged")
        broken(self.values, self.limits)

    @property
    def broken(self) -> list[str]:
        """The limits that the values don't keep, in words."""
        return [] if self.not_run is not None else broken(self.values, self.limits)

    @property
    def passed(self) -> bool | None:
        """None if the gate was not run."""
        return None if self.not_run is not None else not self.broken

    def record(self) -> dict[str, Any]:
        """The gate as a round's results.json holds it.

        Raises:
            InputError: the gate was not run.
        """
        if self.passed is None:
            raise InputError(f"gate {self.gate} was not run: {self.not_run}: it makes no record")
        subject = self.subject
        return {
            "gate": self.gate,
            "model": subject.model,
            "plan": subject.plan,
            "checkpoint": subject.checkpoint,
            "clip": subject.clip,
            "passed": self.passed,
            "values": dict(self.values),
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with everything; `from_dict` reads it."""
        return {
            "gate": self.gate,
            **asdict(self.subject),
            "passed": self.passed,
            "values": dict(self.values),
            "limits": dict(self.limits),
            "not_run": self.not_run,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_dict`.

        Raises:
            InputError: not a verdict, or its `passed` doesn't follow from its values and limits.
        """
        try:
            words = {name: raw[name] for name in Subject.__dataclass_fields__}
            _check_words(words)
            for name in ("values", "limits"):
                if not isinstance(raw[name], Mapping) or not all(isinstance(key, str) for key in raw[name]):
                    raise TypeError(f"'{name}' must be numbers by name")
            found = cls(
                raw["gate"], Subject(**words), dict(raw["values"]), dict(raw["limits"]), raw["not_run"]
            )
            claimed = raw["passed"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"not a gate's verdict: {type(error).__name__}: {one_line(error)}") from None
        if claimed is not found.passed:
            raise InputError(
                f"gate {found.gate}: says passed {brief(claimed)}, its values say {found.passed}: run it"
            )
        return found


def _check_words(words: Mapping[str, object]) -> None:
    for name, word in words.items():
        if word is None and name == "truth":
            continue
        if not isinstance(word, str) or not word:
            raise TypeError(f"'{name}' must be text")
        word.encode()  # no half of a character


@dataclass(frozen=True)
class Report:
    """All verdicts of one stack on one clip. `classes`: accuracy of each class over the clip (gate H's, and
    those of the injected model), as `ClassAccuracy` has it; `width`, `height` in pixels."""

    subject: Subject
    plan: Plan
    verdicts: tuple[Verdict, ...]
    classes: Mapping[str, list[dict[str, Any]]]
    frames: int
    width: int
    height: int

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.passed is False]

    def records(self) -> list[dict[str, Any]]:
        """Of the gates that were run, for results.json."""
        return [verdict.record() for verdict in self.verdicts if verdict.passed is not None]

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.subject),
            "frames": self.frames,
            "width": self.width,
            "height": self.height,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "classes": dict(self.classes),
        }
