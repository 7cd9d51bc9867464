"""A dictionary of tensors and LightlyTrain's init arguments -> ModelSpec and complete weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fasteomt.errors import CheckpointError
from fasteomt.model.reference import Eomt, rope_periods
from fasteomt.model.spec import BACKBONES, MAX_CLASSES, Backbone, ModelSpec, as_tuple, backbone_name

# Where training code keeps the weights, and what wrappers put before their names.
_STATE_KEYS = ("train_model", "model_state_dict", "state_dict", "model", "module")
_PREFIXES = ("_forward_module.", "module.", "_orig_mod.", "train_model.", "model.")

# What torch can widen to fp32. Scales (e8m0) and packed 4-bit values are no weights by themselves.
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)

# Parts of a file that inference never uses: the satellite backbones' norm for local crops, the untied norm
# of the class token, and the loss's and metrics' buffers of training checkpoints.
_UNUSED = re.compile(
    r"^(backbone\.(local_cls_norm|cls_norm)\.|criterion\.|attn_mask_probs$|internal_class_to_class$"
    r"|(train_|val_)?(loss_)?metrics?[._])"
)


def first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    # A bare key or number says nothing to a reader.
    return text[0][:160] if text and any(c.isalpha() for c in text[0]) else type(error).__name__


def find_state(payload: Any, depth: int = 4) -> dict[str, Tensor] | None:
    """The dictionary of tensors that holds `queries.weight`, in at most `depth` wrappers: files may hold
    themselves."""
    if not isinstance(payload, dict) or depth == 0:
        return None
    state = {_strip(k): v for k, v in payload.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if "queries.weight" in state:
        return state
    for key in _STATE_KEYS:
        found = find_state(payload.get(key), depth - 1)
        if found is not None:
            return found
    return state if "backbone.cls_token" in state else None


def _strip(name: str) -> str:
    while (prefix := next((p for p in _PREFIXES if name.startswith(p)), None)) is not None:
        name = name[len(prefix) :]
    return name


def spec_and_weights(
    source: str | Path, state: dict[str, Tensor], arguments: dict[str, Any]
) -> tuple[ModelSpec, dict[str, Tensor], list[str]]:
    """Shapes decide what shapes can; init arguments decide the rest; what neither says is noted."""
    notes: list[str] = []
    try:
        spec = _spec_from(state, arguments, notes)
    except KeyError as error:
        raise CheckpointError(f"{source}: weight {error} is missing: not a DINOv3 EoMT model") from None
    except CheckpointError as error:
        raise CheckpointError(f"{source}: {error}") from None
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(
            f"{source}: its arguments or shapes make no model: {first_line(error)}"
        ) from None
    weights, more = complete_weights(source, state, spec)
    return spec, weights, notes + more


def _spec_from(state: dict[str, Tensor], arguments: dict[str, Any], notes: list[str]) -> ModelSpec:
    patch_weight = state["backbone.patch_embed.proj.weight"]
    embed_dim, patch_size = patch_weight.shape[0], patch_weight.shape[-1]
    depth = _count(state, "backbone.blocks.")
    swiglu = "backbone.blocks.0.mlp.w1.weight" in state
    hidden = state[f"backbone.blocks.0.mlp.{'w1' if swiglu else 'fc1'}.weight"].shape[0]
    backbone = Backbone(
        embed_dim=embed_dim,
        depth=depth,
        num_heads=_num_heads(state, embed_dim),
        ffn="swiglu" if swiglu else "mlp",
        ffn_hidden=hidden,
        qkv_bias="backbone.blocks.0.attn.qkv.bias" in state,
        num_joint_blocks=0,
    )
    stem = _stem_of(backbone)
    name = arguments.get("model_name")
    if name is None:
        name = f"dinov3/{backbone_name(stem or 'vit', patch_size)}-eomt"
    joint_blocks = arguments.get("num_joint_blocks")
    if joint_blocks is None:
        joint_blocks = BACKBONES[stem].num_joint_blocks if stem else 3
        notes.append(
            f"the number of joint blocks is not in the file: LightlyTrain's default {joint_blocks} assumed"
        )
    num_classes = state["class_head.weight"].shape[0] - 1
    if num_classes > MAX_CLASSES:
        raise CheckpointError(
            f"its class head has {num_classes} classes: at most {MAX_CLASSES} are supported"
        )
    classes = arguments.get("classes")
    if classes is None:
        classes = {i: f"class_{i}" for i in range(num_classes)}
        notes.append(f"the file doesn't name its classes: ids 0-{num_classes - 1} assumed")
    normalize = arguments.get("image_normalize")
    if normalize is None:
        notes.append("the file doesn't say its normalisation: ImageNet mean and std assumed")
        normalize = {}
    if not isinstance(normalize, dict) or not isinstance(classes, dict):
        raise CheckpointError("its classes or its normalisation are not a dictionary: export it again")
    if len(classes) != num_classes:
        raise CheckpointError(
            f"its class head has {num_classes} classes, its arguments name {len(classes)}: export it again"
        )
    size = arguments.get("image_size")
    if size is None:
        notes.append("the file doesn't say its image size: 512x512 assumed")
        size = (512, 512)
    optional: dict[str, Any] = {k: as_tuple(normalize[k]) for k in ("mean", "std") if k in normalize}
    return ModelSpec(
        name=name,
        patch_size=patch_size,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=backbone.num_heads,
        ffn=backbone.ffn,
        ffn_hidden=hidden,
        qkv_bias=backbone.qkv_bias,
        num_queries=state["queries.weight"].shape[0],
        num_joint_blocks=joint_blocks,
        num_upscale_blocks=_count(state, "upscale."),
        class_ids=tuple(classes),
        class_names=tuple(classes.values()),
        class_ignore_index=arguments.get("class_ignore_index"),
        image_size=as_tuple(size),
        num_register_tokens=state["backbone.storage_tokens"].shape[1],
        **optional,
    )


def _count(state: dict[str, Tensor], prefix: str) -> int:
    """Modules of a list by their numbers in the weights' names, which must have no gap: a large number in a
    damaged file must not make a large model."""
    found = {int(k.removeprefix(prefix).split(".")[0]) for k in state if k.startswith(prefix)}
    if found != set(range(len(found))):
        raise CheckpointError(f"its weights '{prefix}*' are numbered with gaps: not a DINOv3 EoMT model")
    return len(found)


def _num_heads(state: dict[str, Tensor], embed_dim: int) -> int:
    periods = state.get("backbone.rope_embed.periods")
    if periods is not None:
        return embed_dim // (4 * periods.numel())
    return next((b.num_heads for b in BACKBONES.values() if b.embed_dim == embed_dim), embed_dim // 64)


def _stem_of(backbone: Backbone) -> str | None:
    def key(b: Backbone) -> tuple[int, int, str, int]:
        return b.embed_dim, b.depth, b.ffn, b.ffn_hidden

    return next((stem for stem, b in BACKBONES.items() if key(b) == key(backbone)), None)


def complete_weights(
    source: str | Path, state: dict[str, Tensor], spec: ModelSpec
) -> tuple[dict[str, Tensor], list[str]]:
    """Exactly the reference model's weights: derive what files may leave out, refuse what doesn't fit."""
    with torch.device("meta"):
        expected = {name: value.shape for name, value in Eomt(spec).state_dict().items()}
    weights, notes = dict(state), []
    weights.setdefault("backbone.rope_embed.periods", rope_periods(spec.embed_dim // spec.num_heads))
    weights.setdefault("backbone.mask_token", torch.zeros(1, spec.embed_dim))
    q, k, v = torch.ones(3, spec.embed_dim).unbind()
    for name in expected:
        if name.endswith("bias_mask"):
            # Derived, never read: files that lacked it when they were written hold NaN here.
            weights[name] = torch.cat([q, 0 * k, v])
        elif name.endswith("gamma"):
            weights.setdefault(name, torch.ones(spec.embed_dim))
    for name in expected.keys() & weights.keys():
        _check_kind(source, name, weights[name])
    extra = [name for name in weights if name not in expected]
    unknown = sorted(name for name in extra if not _UNUSED.match(name))
    missing = sorted(expected.keys() - weights.keys())
    wrong = sorted(n for n in expected.keys() & weights.keys() if weights[n].shape != expected[n])
    for problem, names in (
        ("lacks", missing),
        ("has unknown", unknown),
        ("has weights of a wrong shape:", wrong),
    ):
        if names:
            shown = ", ".join(" ".join(n.split())[:100] for n in names[:3]) + (
                f" and {len(names) - 3} more" if len(names) > 3 else ""
            )
            raise CheckpointError(f"{source}: {problem} {shown}: not a DINOv3 EoMT model supported here")
    used = {name: weights[name] for name in expected}
    broken = [n for n, w in used.items() if not w.sum(dtype=torch.float32).isfinite()]
    if broken:
        notes.append(f"weights with NaN or infinity: {', '.join(broken[:3])}: masks can't be trusted")
    return used, notes


def _check_kind(source: str | Path, name: str, weight: Tensor) -> None:
    """Before anything asks for its shape, which nested tensors don't have."""
    dense = weight.layout is torch.strided and not weight.is_nested and not weight.is_meta
    if not dense or weight.dtype not in _DTYPES:
        kind = f"{'nested' if weight.is_nested else weight.layout} {weight.dtype} on {weight.device}"
        raise CheckpointError(
            f"{source}: weight {name} is {kind}: must be dense and floating, of 8 to 64 bits"
        )
