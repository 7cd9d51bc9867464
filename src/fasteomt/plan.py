"""Sites, groups and plans: which arithmetic the model does, where, and in which number format.

A plan is a value. It says how each site of a model is computed; binding it to weights and a device is the
engine's work, and choosing one is what stacks are for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fasteomt.errors import InputError, brief, one_line
from fasteomt.model.spec import ModelSpec

FORMATS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Site:
    """A named place in the model. `op` is what is computed there; `upstream` is the module of
    LightlyTrain's model that holds it ("" where upstream has a bare function)."""

    name: str
    op: str
    upstream: str = ""


@dataclass(frozen=True)
class Group:
    """Consecutive sites that one implementation computes in one number format."""

    sites: tuple[str, ...]
    implementation: str
    recipe: str
    direction: str = "fprop"


@dataclass(frozen=True)
class Plan:
    """A partition of a model's sites into groups, in execution order."""

    groups: tuple[Group, ...]

    @property
    def hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the JSON form: names a plan in records of results."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_json(self) -> str:
        return json.dumps({"groups": [asdict(g) for g in self.groups]}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Inverse of `to_json`.

        Raises:
            InputError: not a plan, or with unknown fields or formats.
        """
        try:
            raw = json.loads(text)
            if not isinstance(raw, dict) or raw.keys() != {"groups"} or not isinstance(raw["groups"], list):
                raise InputError("not a plan: must be an object with a list of groups")
            groups = tuple(_group(one) for one in raw["groups"])
        except (ValueError, RecursionError) as error:
            raise InputError(f"not a plan: {brief(one_line(error))}") from None
        return cls(groups)

    def check(self, spec: ModelSpec) -> None:
        """Every site of the model exactly once, in order.

        Raises:
            InputError: names the first site that is unknown, missing or out of place.
        """
        planned = [name for group in self.groups for name in group.sites]
        expected = [site.name for site in sites(spec)]
        for position, name in enumerate(expected):
            if position >= len(planned):
                raise InputError(f"plan: site '{name}' of {spec.name} is not in the plan")
            if planned[position] != name:
                found = brief(planned[position])
                raise InputError(f"plan: {found} stands where {spec.name} has site '{name}'")
        if len(planned) > len(expected):
            raise InputError(f"plan: unknown site {brief(planned[len(expected)])} for {spec.name}")


def _group(raw: object) -> Group:
    fields = {field.name for field in dataclasses.fields(Group)}
    if not isinstance(raw, dict) or raw.keys() != fields:
        raise InputError(f"plan: group {brief(str(raw))}: must have {', '.join(sorted(fields))} and no more")
    names = raw["sites"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"plan: group {brief(str(raw))}: sites must be a list of names")
    if not isinstance(raw["implementation"], str):
        raise InputError(f"plan: site {brief(names[0])}: the implementation must be a name")
    if raw["recipe"] not in FORMATS:
        raise InputError(f"plan: site {brief(names[0])}: unknown format {brief(str(raw['recipe']))}")
    if raw["direction"] != "fprop":
        raise InputError(f"plan: site {brief(names[0])}: direction must be fprop")
    return Group(tuple(names), raw["implementation"], raw["recipe"])


def sites(spec: ModelSpec) -> tuple[Site, ...]:
    """All sites of a model in execution order, from the frame to the mask."""
    out = [
        Site("frame.prep", "resize+normalise+crop", "preprocess_image"),
        Site("patches", "unfold"),
        Site("patch_embed", "conv", "backbone.patch_embed.proj"),
        Site("rope", "rope_tables", "backbone.rope_embed"),
    ]
    first_joint = spec.depth - spec.num_joint_blocks
    for i in range(spec.depth):
        if i == first_joint:
            out.append(Site("queries", "concat", "queries"))
        out += _block_sites(spec, f"block.{i}", f"backbone.blocks.{i}")
    out.append(Site("norm", "layer_norm", "backbone.norm"))
    out += [Site(f"head.mask.{i}", "gemm", f"mask_head.{i}") for i in (0, 2, 4)]
    for j in range(spec.num_upscale_blocks):
        site, module = f"head.up{j + 1}", f"upscale.{j}"
        out += [
            Site(f"{site}.conv", "gemm", f"{module}.conv1"),
            Site(f"{site}.gelu", "gelu", f"{module}.act"),
            Site(f"{site}.depthwise", "depthwise_conv", f"{module}.conv2"),
            Site(f"{site}.norm", "layer_norm", f"{module}.norm"),
        ]
    out += [
        Site("head.einsum", "gemm"),
        Site("head.class", "gemm", "class_head"),
        Site("frame.post", "upsample+sigmoid+average+argmax", "postprocess"),
    ]
    return tuple(out)


def _block_sites(spec: ModelSpec, site: str, module: str) -> list[Site]:
    attention = [
        Site(f"{site}.norm1", "layer_norm", f"{module}.norm1"),
        Site(f"{site}.qkv", "gemm", f"{module}.attn.qkv"),
        Site(f"{site}.rope", "rope", f"{module}.attn"),
        Site(f"{site}.attention", "attention", f"{module}.attn"),
        Site(f"{site}.proj", "gemm", f"{module}.attn.proj"),
        Site(f"{site}.add1", "scale+add", f"{module}.ls1"),
        Site(f"{site}.norm2", "layer_norm", f"{module}.norm2"),
    ]
    if spec.ffn == "swiglu":
        ffn = [
            Site(f"{site}.w1", "gemm", f"{module}.mlp.w1"),
            Site(f"{site}.w2", "gemm", f"{module}.mlp.w2"),
            Site(f"{site}.silu", "silu*mul", f"{module}.mlp"),
            Site(f"{site}.w3", "gemm", f"{module}.mlp.w3"),
        ]
    else:
        ffn = [
            Site(f"{site}.fc1", "gemm", f"{module}.mlp.fc1"),
            Site(f"{site}.gelu", "gelu", f"{module}.mlp.act"),
            Site(f"{site}.fc2", "gemm", f"{module}.mlp.fc2"),
        ]
    return [*attention, *ffn, Site(f"{site}.add2", "scale+add", f"{module}.ls2")]


def plan_by_op(spec: ModelSpec, implementation: str, recipe_of: Callable[[str], str]) -> Plan:
    """One group a site, each in the format that `recipe_of` gives its op."""
    return Plan(tuple(Group((site.name,), implementation, recipe_of(site.op)) for site in sites(spec)))
