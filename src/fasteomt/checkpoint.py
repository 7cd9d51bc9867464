"""LightlyTrain files <-> (ModelSpec, weights). Offline, without LightlyTrain, unpickling nothing but data."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import pathlib
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fasteomt.errors import CheckpointError, FastEomtError, InputError, brief
from fasteomt.files import atomic_path
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec, parse_backbone_name
from fasteomt.model.state import complete_weights, find_state, first_line, spec_and_weights

logger = logging.getLogger(__name__)

MODEL_CLASS_PATH = (
    "lightly_train._task_models.dinov3_eomt_semantic_segmentation.task_model.DINOv3EoMTSemanticSegmentation"
)
SHIPPED = {"heads-vitt16": Path(__file__).parent / "assets" / "heads-vitt16.pt"}

# Harmless types that LightlyTrain's argument dictionaries may hold beside plain data. Paths become pure
# paths: they are never opened, and a Windows path must load on Linux.
_SAFE_TYPES: list[tuple[Callable[..., Any], str]] = [
    (flavour, f"{module}.{name}")
    for module in ("pathlib", "pathlib._local")
    for flavour, names in (
        (pathlib.PurePosixPath, ("PosixPath", "PurePosixPath")),
        (pathlib.PureWindowsPath, ("WindowsPath", "PureWindowsPath")),
    )
    for name in names
]


@dataclass(frozen=True)
class Checkpoint:
    """A model with its weights, by LightlyTrain's names (`backbone.*`, `queries.weight`, ...).

    `source`: where it came from, for messages and records; `sha256`: of the file, or of the seeded
    weights' description; `random`: True when the weights are seeded noise, not a trained model;
    `notes`: what had to be assumed because the file didn't say.
    """

    spec: ModelSpec
    weights: dict[str, Tensor]
    source: str
    sha256: str
    random: bool = False
    notes: tuple[str, ...] = ()


def resolve(model: str | os.PathLike[str]) -> Checkpoint:
    """The one meaning of `--model`: a file, a shipped model's name, or an architecture's name.

    An architecture ('vitl16', 'dinov3/vitb16-eomt') gives seeded random weights, and a warning says so.

    Raises:
        CheckpointError: the file can't be used.
        InputError: neither a file nor a known name, or no text at all.
    """
    path = _file_meant(model)
    return random_checkpoint(ModelSpec.from_name(str(model))) if path is None else read(path)


def resolve_spec(model: str | os.PathLike[str]) -> ModelSpec:
    """`resolve` without weights: an architecture's name costs no memory."""
    path = _file_meant(model)
    return ModelSpec.from_name(str(model)) if path is None else read(path).spec


def _file_meant(model: str | os.PathLike[str]) -> Path | None:
    """The file that `--model` means; None if it can only be an architecture's name."""
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InputError(
            f"model {brief(model)}: give a checkpoint file, {' or '.join(map(repr, SHIPPED))} (shipped), "
            "or an architecture such as 'vitl16'"
        )
    path = Path(name)
    try:
        if path.exists():
            return path
    except OSError as error:
        raise CheckpointError(f"{brief(name)}: {error.strerror or error}: check the path") from None
    if name in SHIPPED:
        return SHIPPED[name]
    if path.suffix or name.startswith((".", "~", os.sep)):
        raise CheckpointError(f"no such checkpoint: {name}: check the path")
    return None


def random_checkpoint(spec: ModelSpec, seed: int = 0) -> Checkpoint:
    """Seeded random weights that keep activations alive through all blocks; masks mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, value in Eomt(spec).state_dict().items():
        if name.endswith(("periods", "bias_mask")):
            weights[name] = value
        elif name.endswith("gamma"):
            weights[name] = 0.1 + 0.1 * torch.rand(value.shape, generator=generator)
        elif "norm" in name and name.endswith("weight"):
            weights[name] = 0.8 + 0.4 * torch.rand(value.shape, generator=generator)
        elif value.dim() > 1 and "token" not in name and "queries" not in name:
            fan_in = value[0].numel() if "conv1" not in name else value.shape[0]
            weights[name] = torch.randn(value.shape, generator=generator) / math.sqrt(fan_in)
        elif "token" in name or "queries" in name:
            weights[name] = torch.randn(value.shape, generator=generator)
        else:
            weights[name] = 0.1 * torch.randn(value.shape, generator=generator)
    logger.warning("%s: seeded random weights, not a trained model: masks will be meaningless", spec.name)
    digest = hashlib.sha256(f"{spec.to_json()} seed {seed}".encode()).hexdigest()
    return Checkpoint(spec, weights, f"{spec.name} (random weights, seed {seed})", digest, random=True)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a LightlyTrain export or training checkpoint, a file like it, or our own safetensors.

    Weights come back in the file's dtype on the CPU.

    Raises:
        CheckpointError: missing, cut short, foreign, unsafe or inconsistent, in one line.
    """
    path = Path(path)
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "no such checkpoint"
            raise CheckpointError(f"{path}: {what}: give the path of a .pt, .ckpt, .pth or .safetensors file")
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path}: the file is empty: copy or export it again")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            head = file.read(9)
        if path.suffix == ".safetensors" or head[8:9] == b"{":
            spec, weights, notes = _read_safetensors(path)
        else:
            spec, weights, notes = _read_pickle(path)
    except FastEomtError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read: {error.strerror or error}: check the path") from None
    for note in notes:
        logger.warning("%s: %s", path, note)
    return Checkpoint(spec, weights, str(path), sha256, notes=tuple(notes))


def from_state(source: str, state: dict[str, Tensor], arguments: dict[str, Any]) -> Checkpoint:
    """A checkpoint of weights by LightlyTrain's names and its init arguments, both already in memory.

    Raises:
        CheckpointError: they make no DINOv3 EoMT model.
    """
    spec, weights, notes = spec_and_weights(source, state, arguments)
    return Checkpoint(spec, weights, source, sha256="", notes=tuple(notes))


def write_export(
    path: str | os.PathLike[str],
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a LightlyTrain export (.pt) that `lightly_train.load_model` opens unchanged.

    `dtype` rounds floating weights to a smaller type (LightlyTrain widens them again when it loads).

    Raises:
        CheckpointError: the file exists, can't be written, or LightlyTrain has no way to say the model.
    """
    checkpoint = {
        "train_model": {f"model.{k}": v for k, v in _cast(weights, dtype).items()},
        "model_class_path": MODEL_CLASS_PATH,
        "model_init_args": _init_args(spec),
    }
    with _new_file(path, overwrite) as temporary:
        torch.save(checkpoint, temporary)
    return Path(path)


def write_safetensors(
    path: str | os.PathLike[str],
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Path:
    """Write our own form: safetensors whose metadata holds the ModelSpec as JSON.

    Raises:
        CheckpointError: the file exists or can't be written.
    """
    tensors = {k: v.contiguous() for k, v in _cast(weights, dtype).items()}
    with _new_file(path, overwrite) as temporary:
        save_file(tensors, temporary, metadata={"fasteomt.spec": spec.to_json()})
    return Path(path)


@contextmanager
def _new_file(path: str | os.PathLike[str], overwrite: bool) -> Iterator[Path]:
    """`atomic_path` for writers that have errors and file modes of their own."""
    with atomic_path(path, overwrite=overwrite) as temporary:
        # Made here first: whoever may read other new files of this user may read this one.
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            yield temporary
        except (RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f"{path}: can't be written: {first_line(error)}: check the free space"
            ) from None
        temporary.chmod(mode)


def _cast(weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    return {
        k: v.to(dtype) if dtype is not None and v.is_floating_point() and not k.endswith("periods") else v
        for k, v in weights.items()
    }


def _read_safetensors(path: Path) -> tuple[ModelSpec, dict[str, Tensor], list[str]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            raw = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged or cut short: {first_line(error)}: copy it again") from None
    if "fasteomt.spec" not in metadata:
        return spec_and_weights(path, raw, {})
    try:
        spec = ModelSpec.from_json(metadata["fasteomt.spec"])
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    weights, notes = complete_weights(path, raw, spec)
    return spec, weights, notes


def _read_pickle(path: Path) -> tuple[ModelSpec, dict[str, Tensor], list[str]]:
    try:
        with torch.serialization.safe_globals(list(_SAFE_TYPES)):
            payload = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        blocked = re.search(r"(?:GLOBAL|class) ([\w.]+)", str(error))
        if blocked:
            raise CheckpointError(
                f"{path}: holds '{blocked[1]}', which could run code; only plain data and tensors are read: "
                "export the model with LightlyTrain and use that file"
            ) from None
        raise CheckpointError(f"{path}: not a PyTorch checkpoint: export the model again") from None
    except Exception as error:
        # The file could be opened and hashed before: whatever fails now is its content.
        raise CheckpointError(
            f"{path}: damaged, cut short or not a PyTorch checkpoint ({first_line(error)}): copy it again"
        ) from None
    state = find_state(payload)
    if state is None:
        raise CheckpointError(f"{path}: holds no model weights: expected a LightlyTrain export or checkpoint")
    arguments, class_path = payload.get("model_init_args"), payload.get("model_class_path")
    if class_path is not None:
        kind = class_path.rsplit(".", 1)[-1] if isinstance(class_path, str) else class_path
        if not isinstance(kind, str) or kind != MODEL_CLASS_PATH.rsplit(".", 1)[-1]:
            raise CheckpointError(
                f"{path}: holds a {brief(kind)}: only DINOv3 EoMT semantic segmentation is supported"
            )
    if arguments is not None and not isinstance(arguments, dict):
        raise CheckpointError(f"{path}: its model_init_args are not a dictionary: export the model again")
    return spec_and_weights(path, state, arguments or {})


def _init_args(spec: ModelSpec) -> dict[str, Any]:
    parsed = parse_backbone_name(spec.name.removesuffix("-eomt"))
    if parsed is None or parsed[1] != spec.patch_size:
        raise CheckpointError(f"LightlyTrain has no backbone '{spec.name}': save as .safetensors instead")
    by_patch = max(1, math.ceil(math.log2(spec.patch_size)) - 2)
    if spec.num_upscale_blocks not in (2, by_patch):
        raise CheckpointError(
            f"LightlyTrain can't build {spec.num_upscale_blocks} upscale blocks at patch {spec.patch_size}: "
            "save as .safetensors instead"
        )
    return {
        "model_name": spec.name,
        "classes": spec.names,
        "class_ignore_index": spec.class_ignore_index,
        "image_size": spec.image_size,
        "image_normalize": {"mean": spec.mean, "std": spec.std},
        "num_queries": spec.num_queries,
        "num_joint_blocks": spec.num_joint_blocks,
        "backbone_freeze": False,
        "backbone_args": None,
        "fix_num_upscale_blocks": spec.num_upscale_blocks == 2,
    }
