"""Write a shipped model's card from the records that its training and its evaluations wrote.

    python scripts/pretrain_eomt.py ... --out pretrained.pt                      # writes pretrained.json
    fasteomt convert pretrained.pt src/fasteomt/assets/heads-vitt16.pt --dtype bf16
    fasteomt data synth HELD --train 0 --valid 200 --seed 1000
    fasteomt eval --data HELD --json eval.json
    fasteomt eval --data HELD --peer upstream_predict --json eval_upstream.json
    python scripts/write_model_card.py --training pretrained.json --eval eval.json \
        --upstream eval_upstream.json

The card, src/fasteomt/assets/<model>.json, is what README's table and the tests read.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fasteomt.checkpoint import SHIPPED, read
from fasteomt.cli.script import OneLineParser, exit_code
from fasteomt.errors import InputError
from fasteomt.files import write_json

NAME = "write_model_card"
EVALUATION_KEYS = (
    "scores", "images", "images_in_split", "limit", "model_sha256", "dataset_sha256", "device", "predictor",
    "commit", "source",
)  # fmt: skip


def record(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """A JSON file that must hold `keys`."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds no record: is it the file that is meant?")
    missing = [key for key in keys if key not in found]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}: is it the record that is meant?")
    return dict(found)


def portable(command: str) -> str:
    """The command with the last part alone of each path among its options' values."""
    try:
        words = shlex.split(command)
    except (ValueError, AttributeError):
        raise InputError(f"command {command!r}: can't be taken apart: is the record complete?") from None
    return shlex.join(words[:1] + [Path(word).name if "/" in word else word for word in words[1:]])


def card(model: str, evaluation: Path, upstream: Path, training: Path) -> dict[str, Any]:
    """The card's content.

    Raises:
        InputError: records that don't belong to the model or to one another.
    """
    ours, theirs = record(evaluation, EVALUATION_KEYS), record(upstream, EVALUATION_KEYS)
    checkpoint = read(SHIPPED[model])
    for path, found in ((evaluation, ours), (upstream, theirs)):
        if found["model_sha256"] != checkpoint.sha256:
            raise InputError(f"{path}: is of another model than {SHIPPED[model].name}: evaluate it again")
        if found["limit"] is not None or found["images"] != found["images_in_split"]:
            raise InputError(f"{path}: is of a part of the images: evaluate without --limit")
        if found["device"] != "cpu":
            raise InputError(f"{path}: is of {found['device']}: evaluate with --device cpu, as anybody can")
        if found["commit"] is None or str(found["commit"]).endswith("-dirty"):
            raise InputError(f"{path}: is not of a commit ({found['commit']}): evaluate a clean checkout")
    if ours["predictor"] != "fasteomt fp32":
        raise InputError(f"{evaluation}: is of {ours['predictor']}, not of fasteomt fp32: evaluate again")
    same = ours["dataset_sha256"] == theirs["dataset_sha256"]
    if not same or not str(theirs["predictor"]).startswith("upstream"):
        raise InputError(f"{upstream}: must be upstream_predict on the data of {evaluation}")
    trained = record(training, ("command", "device", "steps", "seconds", "source"))
    trained["command"] = portable(trained["command"])
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
        "hardware": f"{platform.machine()} CPU",
        "commit": ours["commit"],
        "source": ours["source"],
        "stored_as": sorted({str(w.dtype).removeprefix("torch.") for w in checkpoint.weights.values()}),
        "training": trained,
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
