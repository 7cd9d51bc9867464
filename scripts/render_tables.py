"""Write README.md's result block from the files that hold the figures.

    python scripts/render_tables.py           rewrite the block
    python scripts/render_tables.py --check   exit 1 where it differs, change nothing

The figures come from the shipped model's card (src/fasteomt/assets/heads-vitt16.json) and from the ladders'
results (*/round*/results.json); none is typed by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CARD = Path("src/fasteomt/assets/heads-vitt16.json")
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def accuracy(card: dict[str, Any]) -> str:
    """The shipped model's IoU against true masks, one row a class, with the command that gives it."""
    rows = [[name, f"{value:.4f}"] for name, value in card["iou"].items()]
    return (
        f"The shipped model `heads-vitt16`, on {card['images']} held-out generated images:\n\n"
        + table(["class", "IoU"], rows)
        + f"\n\nMeasured on {card['hardware']} at commit `{card['commit'][:12]}` by `{card['command']}`"
    )


def speed(results: Iterable[dict[str, Any]]) -> str:
    """Rows of every round that have a baseline: what was measured, against what, and whether it is right."""
    rows = []
    for result in results:
        for run in result["runs"]:
            for row in run["rows"]:
                if row.get("ratio") is None:
                    continue
                rows.append(
                    [
                        result["round"],
                        run["env"]["gpu"],
                        row["model"],
                        row["stack"],
                        row["metric"],
                        f"{row['median']:g} {row['unit']}",
                        f"{row['ratio']:.2f} x {row['baseline']}",
                        row["accuracy"],
                        f"`{run['command']}`",
                    ]
                )
    header = ["round", "GPU", "model", "stack", "metric", "median", "ratio", "accuracy", "command"]
    return table(header, rows) if rows else "No speed figures have been measured yet."


def block(root: Path) -> str:
    """The whole block between the markers."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(root.glob("*/round*/results.json"))]
    card = root / CARD
    parts = [speed(results)]
    if card.is_file():
        parts.append(accuracy(json.loads(card.read_text("utf-8"))))
    return "\n\n".join(parts)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Returns the exit code: 0, or 1 where `--check` finds a difference, 2 for wrong usage."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python scripts/render_tables.py [--check]", file=sys.stderr)
        return 2
    readme = root / "README.md"
    text = readme.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"{readme}: needs exactly one {BEGIN} and one {END}", file=sys.stderr)
        return 2
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    wanted = f"{before}{BEGIN}\n{block(root)}\n{END}{after}"
    if wanted == text:
        return 0
    if arguments:
        print(f"{readme}: result block is old: run  python scripts/render_tables.py", file=sys.stderr)
        return 1
    readme.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
