"""ModelSpec: everything about a DINOv3 + EoMT model except its weights."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from fasteomt.errors import CheckpointError, InputError, brief, one_line
from fasteomt.ids import id_dtype

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
NUM_REGISTER_TOKENS = 4
LAYER_NORM_EPS = 1e-5

# More than these is a mistake in a file, not a model: building it would take hours, or memory that doesn't
# exist. All are several times what the largest DINOv3 and EoMT have.
MAX_CROP_SIZE = 2048
MAX_GRID_SIZE = 128  # attention looks at every pair of a crop's 128 x 128 patches
MAX_CLASSES = 65536
_MAXIMA = {
    "embed_dim": 8192,
    "depth": 128,
    "num_heads": 256,
    "ffn_hidden": 32768,
    "num_queries": 4096,
    "num_register_tokens": 256,
}
_MAX_NAME = 1000  # characters
_MAX_PIXEL_VALUE = 1e6  # of mean and std; fp32 holds what comes of it


@dataclass(frozen=True)
class Backbone:
    """Dimensions of a DINOv3 ViT. `ffn_hidden` is the width between the two (or three) FFN matrices."""

    embed_dim: int
    depth: int
    num_heads: int
    ffn: str
    ffn_hidden: int
    qkv_bias: bool
    num_joint_blocks: int


# Names and dimensions of the published DINOv3 ViTs. `plus` widens the FFN by half again; all but the tiny
# one then use SwiGLU, whose hidden width is 2/3 of that. num_joint_blocks is LightlyTrain's default.
BACKBONES = {
    "vitt": Backbone(192, 12, 3, "mlp", 768, True, 3),
    "vittplus": Backbone(192, 12, 3, "mlp", 1152, True, 3),
    "vits": Backbone(384, 12, 6, "mlp", 1536, True, 3),
    "vitsplus": Backbone(384, 12, 6, "swiglu", 1536, True, 3),
    "vitb": Backbone(768, 12, 12, "mlp", 3072, True, 3),
    "vitl": Backbone(1024, 24, 16, "mlp", 4096, True, 4),
    "vithplus": Backbone(1280, 32, 20, "swiglu", 5120, True, 5),
    "vit7b": Backbone(4096, 40, 32, "swiglu", 8192, False, 5),
}

_NAME = re.compile(
    r"^(?:dinov3/)?(?P<stem>vit(?:7b|[tsblh]))(?P<patch>[0-9]{1,4})(?P<plus>plus)?(?P<tag>(?:[-_][a-z0-9]+)*)$"
)


def parse_backbone_name(name: str) -> tuple[str, int] | None:
    """('vitl', 16) for 'vitl16', 'dinov3/vitl16-eomt' and the like; None for anything else."""
    match = _NAME.match(name)
    if match is None or match["stem"] + (match["plus"] or "") not in BACKBONES:
        return None
    return match["stem"] + (match["plus"] or ""), int(match["patch"])


def backbone_name(stem: str, patch_size: int) -> str:
    """'vitsplus', 16 -> 'vits16plus', as LightlyTrain spells it."""
    plain = stem.removesuffix("plus")
    return f"{plain}{patch_size}{stem[len(plain) :]}"


@dataclass(frozen=True)
class ModelSpec:
    """A DINOv3 + EoMT semantic segmentation model, as far as it can be said without weights.

    `class_ids` are the data set's ids in the order of the class head's outputs; masks hold these ids.
    `image_size` is (height, width) in pixels; square crops have its smaller side. `mean` and `std` apply
    to RGB in [0, 1]. The class head has one output more than there are classes ("no object").
    """

    name: str
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    ffn: str
    ffn_hidden: int
    qkv_bias: bool
    num_queries: int
    num_joint_blocks: int
    num_upscale_blocks: int
    class_ids: tuple[int, ...]
    class_names: tuple[str, ...]
    class_ignore_index: int | None = None
    image_size: tuple[int, int] = (512, 512)
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    num_register_tokens: int = NUM_REGISTER_TOKENS

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _fits(value, _field_types()[field.name]):
                raise CheckpointError(f"{field.name} is {brief(value)}: expected {field.type}")
        if len(self.name) > _MAX_NAME or not self.name.isprintable():
            raise CheckpointError(f"model name {brief(self.name)}: must be one line of printable text")
        self._check_sizes()
        self._check_classes()
        self._check_pixels()

    def _check_sizes(self) -> None:
        for field, most in _MAXIMA.items():
            if getattr(self, field) > most:
                raise CheckpointError(
                    f"{self.name}: {field} is {brief(getattr(self, field))}: at most {most} is supported"
                )
        counts = self.patch_size, self.embed_dim, self.num_heads, self.ffn_hidden, self.num_upscale_blocks
        # RoPE turns pairs of a head's channels, for two axes.
        if min(counts) < 1 or self.num_register_tokens < 0 or self.embed_dim % (4 * self.num_heads):
            raise CheckpointError(
                f"{self.name}: patch {brief(self.patch_size)}, {self.num_heads} heads of {self.embed_dim}, "
                f"{brief(self.num_upscale_blocks)} upscale blocks: no ViT"
            )
        if self.ffn not in ("mlp", "swiglu"):
            raise CheckpointError(f"{self.name}: ffn is {brief(self.ffn)}: must be 'mlp' or 'swiglu'")
        if self.num_queries < 1:
            raise CheckpointError(f"{self.name}: has no queries")
        if not 1 <= self.num_joint_blocks <= self.depth:
            raise CheckpointError(
                f"{self.name}: {brief(self.num_joint_blocks)} joint blocks in {self.depth} blocks"
            )
        largest = min(MAX_CROP_SIZE, MAX_GRID_SIZE * self.patch_size)
        if not self.patch_size <= self.crop_size <= largest:
            raise CheckpointError(
                f"{self.name}: image size {brief(self.image_size)} must be from one patch, "
                f"{brief(self.patch_size)}, to {largest} pixels"
            )
        # Each block doubles the patch grid; masks finer than pixels would only cost memory.
        finest = max(2, self.patch_size.bit_length() - 1)
        if self.num_upscale_blocks > finest:
            raise CheckpointError(
                f"{self.name}: {brief(self.num_upscale_blocks)} upscale blocks: "
                f"at most {finest} make sense at patch {self.patch_size}"
            )

    def _check_classes(self) -> None:
        if len(self.class_ids) != len(self.class_names) or not 1 <= len(self.class_ids) <= MAX_CLASSES:
            raise CheckpointError(
                f"{self.name}: has {len(self.class_ids)} ids, {len(self.class_names)} names: "
                f"must be as many of each, 1 to {MAX_CLASSES}"
            )
        ids = (*self.class_ids, self.class_ignore_index or 0)
        outside = next((i for i in ids if not -(2**31) <= i < 2**31), None)
        if outside is not None:
            raise CheckpointError(f"{self.name}: class id {brief(outside)} must fit 32 bits")
        if len(set(self.class_ids)) != len(self.class_ids):
            raise CheckpointError(f"{self.name}: class ids repeat: {brief(self.class_ids)}")
        unwritable = next((n for n in self.class_names if not _is_text(n)), None)
        if unwritable is not None:
            raise CheckpointError(f"{self.name}: class name {brief(unwritable)} is no text: rename the class")
        name, count = Counter(self.class_names).most_common(1)[0]
        if count > 1:
            sharing = [i for i, n in zip(self.class_ids, self.class_names, strict=True) if n == name]
            raise CheckpointError(
                f"{self.name}: classes {brief(sharing)} share the name {brief(name)}: "
                "give each class its own name"
            )

    def _check_pixels(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3:
            raise CheckpointError(f"{self.name}: takes {len(self.mean)} channels: only RGB is supported")
        most, least = _MAX_PIXEL_VALUE, 1 / _MAX_PIXEL_VALUE
        if not all(-most <= m <= most for m in self.mean) or not all(least <= s <= most for s in self.std):
            raise CheckpointError(
                f"{self.name}: normalisation {brief(self.mean)}, {brief(self.std)}: "
                f"must be finite and at most {most:g}, std positive and at least {least:g}"
            )

    @property
    def crop_size(self) -> int:
        """Side of the square crops in pixels."""
        return min(self.image_size)

    @property
    def grid_size(self) -> int:
        """Patches along a crop's side; pixels past the last whole patch are not seen."""
        return self.crop_size // self.patch_size

    @property
    def num_prefix_tokens(self) -> int:
        """Class token and register tokens, which RoPE leaves alone."""
        return 1 + self.num_register_tokens

    @property
    def short_name(self) -> str:
        """The architecture as records of results and gates name it: 'vitl16' of 'dinov3/vitl16-eomt'."""
        return self.name.removeprefix("dinov3/").removesuffix("-eomt")

    @property
    def names(self) -> dict[int, str]:
        return dict(zip(self.class_ids, self.class_names, strict=True))

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Of masks: the smallest of uint8, uint16 and int32 that holds every class id."""
        return id_dtype(self.class_ids)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Inverse of `to_json`.

        Raises:
            CheckpointError: not a spec, with unknown or missing fields, or values that make no model.
        """
        try:
            raw = json.loads(text)
            if not isinstance(raw, dict):
                raise TypeError(f"it is {brief(raw)}")
            return cls(**{field: as_tuple(value) for field, value in raw.items()})
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"not a fasteomt model description: {one_line(error)[:200]}") from None

    @classmethod
    def from_name(cls, name: str, **changes: Any) -> ModelSpec:
        """The spec of an architecture by name, with two classes; `changes` replace any field.

        Raises:
            InputError: no such architecture.
        """
        parsed = parse_backbone_name(name)
        if parsed is None:
            raise InputError(
                f"{brief(name)} is neither a file nor a known model: give a checkpoint path, or one of "
                + ", ".join(backbone_name(stem, 16) for stem in BACKBONES)
                + " (also with patch 32)"
            )
        stem, patch_size = parsed
        if patch_size < 1:
            raise InputError(f"'{name}': patch size {patch_size} must be positive")
        fields: dict[str, Any] = {
            **dataclasses.asdict(BACKBONES[stem]),
            "name": f"dinov3/{backbone_name(stem, patch_size)}-eomt",
            "patch_size": patch_size,
            "num_queries": 100,
            "num_upscale_blocks": 2,
            "class_ids": (0, 1),
            "class_names": ("background", "object"),
        }
        return cls(**(fields | changes))


@cache
def _field_types() -> dict[str, Any]:
    return get_type_hints(ModelSpec)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type, elements included. Any number but a bool passes for a float."""
    if get_origin(kind) is UnionType:
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if not isinstance(value, tuple):
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def as_tuple(value: Any) -> Any:
    """A list as a tuple; anything else as it is. JSON and pickles hold either where a spec has tuples."""
    return tuple(value) if isinstance(value, list) else value


def _is_text(name: str) -> bool:
    """Whether UTF-8 can say it: strings may hold halves of characters, which no file takes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
