"""Write the generated parts of README.md and of the ladders' indexes from the files that hold the figures.

    python scripts/render_tables.py           rewrite them
    python scripts/render_tables.py --check   exit 1 where one differs, change nothing

The figures come from the shipped model's card (src/fasteomt/assets/heads-vitt16.json) and from the ladders'
results (*/round*/results.json); none is typed by hand. While `fasteomt.bench.problems` finds something wrong
with these, nothing is written and the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fasteomt.bench.ladder import ladders
from fasteomt.bench.results import RoundResults
from fasteomt.errors import InputError
from fasteomt.provenance import source_digest
from ladder_index import index, read_ladders, speed, table

ROOT = Path(__file__).resolve().parent.parent
CARD = Path("src/fasteomt/assets/heads-vitt16.json")
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def accuracy(card: dict[str, Any]) -> str:
    """The shipped model's IoU against true masks, one row a class, with the command that gives it."""
    rows = [[name, f"{value:.4f}"] for name, value in card["iou"].items()]
    return (
        f"The shipped model `heads-vitt16`, on {card['images']} held-out generated images:\n\n"
        + table(["class", "IoU"], rows)
        + f"\n\nMeasured on {card['hardware']} at commit `{card['commit'][:12]}` by `{card['data']}`, "
        f"`{card['command']}`"
    )


def block(root: Path, results: Mapping[str, RoundResults], source: str) -> str:
    """README's whole block between the markers."""
    card = root / CARD
    parts = [speed(results, source)]
    if card.is_file():
        parts.append(accuracy(json.loads(card.read_text("utf-8"))))
    return "\n\n".join(parts)


def filled(path: Path, text: str, content: str) -> str:
    """`text` with `content` between the markers.

    Raises:
        InputError: it has no such place, or more than one.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise InputError(f"{path}: needs exactly one {BEGIN} and, behind it, one {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def wanted(root: Path, results: Mapping[str, RoundResults]) -> dict[Path, str]:
    """The files with generated parts, and what each should hold."""
    source = source_digest()
    readme = root / "README.md"
    files = {readme: filled(readme, readme.read_text("utf-8"), block(root, results, source))}
    for ladder in ladders(root):
        path = ladder / "README.md"
        text = path.read_text("utf-8") if path.exists() else f"# {ladder.name}\n\n{BEGIN}\n{END}\n"
        files[path] = filled(path, text, index(ladder, results, source))
    return files


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Returns the exit code: 0; 1 for wrong results or, with `--check`, a difference; 2 for wrong usage."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python scripts/render_tables.py [--check]", file=sys.stderr)
        return 2
    results, wrong = read_ladders(root)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    try:
        files = wanted(root, results)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    old = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        if arguments:
            print(f"{path}: generated part is old: run  python scripts/render_tables.py", file=sys.stderr)
        else:
            path.write_text(files[path], "utf-8")
    return 1 if old and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
