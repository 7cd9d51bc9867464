"""Write a shipped model's card from the records of its evaluation and training; nothing is typed by hand.

    fasteomt data synth HELD --train 0 --valid 200 --seed 1000
    fasteomt eval --data HELD --json eval.json
    fasteomt eval --data HELD --peer upstream_predict --json eval_upstream.json
    python scripts/write_model_card.py --eval eval.json --upstream eval_upstream.json --training training.json

`training.json` holds what the training's scripts logged: commands, hardware, versions, steps, seconds, seeds.
The card, src/fasteomt/assets/<model>.json, is what README's table and the tests read.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fasteomt.checkpoint import SHIPPED, read
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.errors import InputError
from fasteomt.files import write_json

NAME = "write_model_card"
ROOT = Path(__file__).resolve().parent.parent


def record(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """A JSON file that must hold `keys`."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from None
    missing = [key for key in keys if key not in found]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}: write it with  fasteomt eval --json")
    return dict(found)


def hardware(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{platform.machine()} CPU"


def card(model: str, evaluation: Path, upstream: Path, training: Path) -> dict[str, Any]:
    """The card's content.

    Raises:
        InputError: records that don't belong to the model or to one another.
    """
    keys = ("scores", "images", "model_sha256", "dataset_sha256", "device", "predictor")
    ours, theirs = record(evaluation, keys), record(upstream, keys)
    checkpoint = read(SHIPPED[model])
    for path, found in ((evaluation, ours), (upstream, theirs)):
        if found["model_sha256"] != checkpoint.sha256:
            raise InputError(f"{path}: is of another model than {SHIPPED[model].name}: evaluate it again")
    if ours["dataset_sha256"] != theirs["dataset_sha256"] or not theirs["predictor"].startswith("upstream"):
        raise InputError(f"{upstream}: must be upstream_predict on the data of {evaluation}")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {
        "model": model,
        "architecture": checkpoint.spec.name,
        "sha256": checkpoint.sha256,
        "iou": {score["name"]: score["iou"] for score in ours["scores"]},
        "iou_upstream_predict": {score["name"]: score["iou"] for score in theirs["scores"]},
        "images": ours["images"],
        "dataset_sha256": ours["dataset_sha256"],
        "data": "fasteomt data synth HELD --train 0 --valid 200 --seed 1000",
        "command": f"fasteomt eval --data HELD --model {model}",
        "hardware": hardware(ours["device"]),
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
        "training": record(training, ("commands", "hardware")),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    p = OneLineParser(prog=NAME, description="Write a shipped model's card.")
    p.add_argument("--model", default="heads-vitt16", choices=sorted(SHIPPED))
    p.add_argument("--eval", type=Path, required=True, help="JSON of  fasteomt eval")
    p.add_argument(
        "--upstream", type=Path, required=True, help="JSON of  fasteomt eval --peer upstream_predict"
    )
    p.add_argument("--training", type=Path, required=True, help="JSON record of the training")
    args = p.parse_args(arguments)

    def work() -> None:
        content = card(args.model, args.eval, args.upstream, args.training)
        write_json(SHIPPED[args.model].with_suffix(".json"), content, overwrite=True)

    return exit_code(NAME, work)


if __name__ == "__main__":
    sys.exit(main())
