"""What each site of a model must compute and move: the same definition for every stack and every table.

Operations: 2 M N K of a matrix product, patch embedding and transposed convolution being such products too;
4 N^2 C per crop of attention over N tokens (scores and weighted sum, 2 N^2 C each); a multiplication and an
addition per tap of a depthwise convolution and per term of the class scores. Elementwise arithmetic is not
counted: memory bounds it.

Bytes: each input read once, each output written once, weights included, in the number format of the site. Two
exceptions: the residual stream is fp32 in every plan, and frames and masks are integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.model.tiling import Tiling
from fasteomt.plan import Plan, Site, sites

# Of one value, with its share of the block scale: one byte for 32 values (MX) or 16 (NVFP4), by the OCP
# Microscaling Formats specification v1.0 and NVIDIA's definition of NVFP4.
BYTES_PER_VALUE = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8_e4m3": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 1 / 2 + 1 / 16,
    "mxfp4": 1 / 2 + 1 / 32,
}


@dataclass(frozen=True)
class SiteCost:
    """Operations (a multiplication and an addition are two) and bytes of one site, for all crops together."""

    site: str
    op: str
    recipe: str
    flops: int
    bytes: float


@dataclass(frozen=True)
class _Cost:
    """`values` in the site's format, `stream` values of the residual stream, `raw` bytes of other kinds."""

    flops: int
    values: int
    stream: int = 0
    raw: int = 0


def site_costs(
    spec: ModelSpec, plan: Plan, crops: int, *, frames: int = 1, frame: tuple[int, int] | None = None
) -> tuple[SiteCost, ...]:
    """The cost of every site, in execution order.

    Args:
        crops: of one frame, `frames` frames being computed together.
        frame: (height, width) of a frame in pixels. By default the one that is cut into `crops` squares
            without resizing or overlap.

    Raises:
        InputError: the plan is for another model, or the frame doesn't make that many crops.
        UnsupportedError: a format in the plan that has no size here.
    """
    plan.check(spec)
    if crops < 1 or frames < 1:
        raise InputError(f"{crops} crops, {frames} frames: there must be at least one of each")
    frame = frame or (spec.crop_size, crops * spec.crop_size)
    found = len(Tiling.of(*frame, spec.crop_size).starts)
    if found != crops:
        raise InputError(f"a frame of {frame[1]}x{frame[0]} pixels makes {found} crops, not {crops}")
    recipes = {name: group.recipe for group in plan.groups for name in group.sites}
    unknown = next((site for site, recipe in recipes.items() if recipe not in BYTES_PER_VALUE), None)
    if unknown is not None:
        raise UnsupportedError(f"site {unknown}: the size of format '{recipes[unknown]}' is not known here")

    costs = _Costs(spec, crops * frames, frames, frame)
    out = []
    for site in sites(spec):
        cost, width = costs.of(site), BYTES_PER_VALUE[recipes[site.name]]
        total = cost.values * width + cost.stream * BYTES_PER_VALUE["fp32"] + cost.raw
        out.append(SiteCost(site.name, site.op, recipes[site.name], cost.flops, total))
    return tuple(out)


def _gemm(m: int, n: int, k: int, bias: int) -> _Cost:
    return _Cost(2 * m * n * k, m * k + k * n + m * n + bias)


class _Costs:
    """A model's shapes. In names of shapes: b crops, c channels, q queries, p patches of a crop."""

    def __init__(self, spec: ModelSpec, crops: int, frames: int, frame: tuple[int, int]) -> None:
        self.spec, self.b, self.frames, self.frame = spec, crops, frames, frame
        self.c, self.q, self.p = spec.embed_dim, spec.num_queries, spec.grid_size**2
        self.head_dim = spec.embed_dim // spec.num_heads
        self.pixels = crops * spec.crop_size**2
        self.mask_pixels = crops * self.p * 4**spec.num_upscale_blocks
        self.image_tokens = spec.num_prefix_tokens + self.p

    def of(self, site: Site) -> _Cost:
        part, _, rest = site.name.partition(".")
        if part == "block":
            number, _, name = rest.partition(".")
            joint = int(number) >= self.spec.depth - self.spec.num_joint_blocks
            return self._block(name, self.image_tokens + (self.q if joint else 0))
        if rest.startswith("up"):
            number, _, name = rest.removeprefix("up").partition(".")
            return self._upscale(name, self.b * self.p * 4 ** (int(number) - 1))
        if rest.startswith("mask"):
            return _gemm(self.b * self.q, self.c, self.c, bias=self.c)
        return self._single(site.name)

    def _block(self, name: str, n: int) -> _Cost:
        """`n` tokens of a crop."""
        c, hidden, t = self.c, self.spec.ffn_hidden, self.b * n
        costs: dict[str, Callable[[], _Cost]] = {
            "norm1": lambda: self._norm_of_stream(t),
            "qkv": lambda: _gemm(t, 3 * c, c, bias=3 * c if self.spec.qkv_bias else 0),
            # queries and keys of the patches, in and out; the other tokens are not turned
            "rope": lambda: _Cost(0, 4 * self.b * self.p * c + 2 * self.p * self.head_dim),
            "attention": lambda: _Cost(4 * n * n * c * self.b, 4 * t * c),
            "proj": lambda: _gemm(t, c, c, bias=c),
            "add1": lambda: _Cost(0, t * c + c, stream=2 * t * c),
            "norm2": lambda: self._norm_of_stream(t),
            "fc1": lambda: _gemm(t, hidden, c, bias=hidden),
            "gelu": lambda: _Cost(0, 2 * t * hidden),
            "fc2": lambda: _gemm(t, c, hidden, bias=c),
            "w1": lambda: _gemm(t, hidden, c, bias=hidden),
            "w2": lambda: _gemm(t, hidden, c, bias=hidden),
            "silu": lambda: _Cost(0, 3 * t * hidden),
            "w3": lambda: _gemm(t, c, hidden, bias=c),
            "add2": lambda: _Cost(0, t * c + c, stream=2 * t * c),
        }
        return costs[name]()

    def _upscale(self, name: str, cells: int) -> _Cost:
        """`cells` of all crops' grids before the block, which makes four of each."""
        c, after = self.c, 4 * cells * self.c
        costs = {
            "conv": _gemm(cells, 4 * c, c, bias=c),
            "gelu": _Cost(0, 2 * after),
            "depthwise": _Cost(2 * 9 * after, 2 * after + 9 * c),
            "norm": _Cost(0, 2 * after + 2 * c),
        }
        return costs[name]

    def _single(self, name: str) -> _Cost:
        spec, b, c, q = self.spec, self.b, self.c, self.q
        outputs, frame_pixels = len(spec.class_ids) + 1, self.frames * self.frame[0] * self.frame[1]
        before, after = b * self.image_tokens * c, b * (self.image_tokens + q) * c
        costs = {
            "frame.prep": _Cost(0, 3 * self.pixels, raw=3 * frame_pixels),
            "patches": _Cost(0, 6 * self.pixels),
            "patch_embed": _gemm(b * self.p, c, 3 * spec.patch_size**2, bias=c),
            "rope": _Cost(0, self.head_dim // 4 + 2 * self.p * self.head_dim),
            "queries": _Cost(0, q * c, stream=before + after),
            "norm": self._norm_of_stream(b * (self.image_tokens + q)),
            "head.einsum": _Cost(
                2 * q * c * self.mask_pixels, b * q * c + c * self.mask_pixels + q * self.mask_pixels
            ),
            "head.class": _gemm(b * q, outputs, c, bias=outputs),
            "frame.post": _Cost(
                2 * self.pixels * q * len(spec.class_ids),
                q * self.mask_pixels + b * q * outputs,
                raw=frame_pixels * spec.id_dtype.itemsize,
            ),
        }
        return costs[name]

    def _norm_of_stream(self, tokens: int) -> _Cost:
        return _Cost(0, tokens * self.c + 2 * self.c, stream=tokens * self.c)
