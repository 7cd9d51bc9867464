"""ModelSpec: everything about a DINOv3 + EoMT model except its weights."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fasteomt.errors import CheckpointError, InputError
from fasteomt.ids import id_dtype

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
NUM_REGISTER_TOKENS = 4
LAYER_NORM_EPS = 1e-5
MAX_CROP_SIZE = 8192  # more is a mistake in a file, and memory for its tokens doesn't exist


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
    r"^(?:dinov3/)?(?P<stem>vit(?:7b|[tsblh]))(?P<patch>\d+)(?P<plus>plus)?(?P<tag>(?:[-_][a-z0-9]+)*)$"
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
        counts = self.patch_size, self.embed_dim, self.num_heads, self.ffn_hidden, self.num_upscale_blocks
        # RoPE turns pairs of a head's channels, for two axes.
        if min(counts) < 1 or self.embed_dim % (4 * self.num_heads):
            raise CheckpointError(
                f"{self.name}: patch {self.patch_size}, {self.num_heads} heads of {self.embed_dim}: no ViT"
            )
        if len(self.class_ids) != len(self.class_names) or not self.class_ids:
            raise CheckpointError(
                f"{self.name}: has {len(self.class_ids)} ids, {len(self.class_names)} names"
            )
        if len(set(self.class_ids)) != len(self.class_ids):
            raise CheckpointError(f"{self.name}: class ids repeat: {list(self.class_ids)}")
        repeated = sorted({n for n in self.class_names if self.class_names.count(n) > 1})
        if repeated:
            ids = [i for i, n in zip(self.class_ids, self.class_names, strict=True) if n == repeated[0]]
            raise CheckpointError(
                f"{self.name}: classes {ids} share the name '{repeated[0]}': give each class its own name"
            )
        if len(self.mean) != 3 or len(self.std) != 3:
            raise CheckpointError(f"{self.name}: takes {len(self.mean)} channels: only RGB is supported")
        if not all(math.isfinite(m) and 0 < s < math.inf for m, s in zip(self.mean, self.std, strict=True)):
            raise CheckpointError(
                f"{self.name}: normalisation {self.mean}, {self.std}: must be finite, std positive"
            )
        if not all(-(2**31) <= i < 2**31 for i in self.class_ids):
            raise CheckpointError(f"{self.name}: class ids {list(self.class_ids)[:3]}... must fit 32 bits")
        if self.num_queries < 1:
            raise CheckpointError(f"{self.name}: has no queries")
        if not 1 <= self.num_joint_blocks <= self.depth:
            raise CheckpointError(f"{self.name}: {self.num_joint_blocks} joint blocks in {self.depth} blocks")
        if not self.patch_size <= self.crop_size <= MAX_CROP_SIZE:
            raise CheckpointError(
                f"{self.name}: image size {self.image_size} must be from one patch to {MAX_CROP_SIZE} pixels"
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
            CheckpointError: not a spec, or with unknown or missing fields.
        """
        try:
            raw = json.loads(text)
            lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
            return cls(**lists)
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"not a fasteomt model description: {error}") from None

    @classmethod
    def from_name(cls, name: str, **changes: Any) -> ModelSpec:
        """The spec of an architecture by name, with two classes; `changes` replace any field.

        Raises:
            InputError: no such architecture.
        """
        parsed = parse_backbone_name(name)
        if parsed is None:
            raise InputError(
                f"'{name}' is neither a file nor a known model: give a checkpoint path, or one of "
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
