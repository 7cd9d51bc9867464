"""The model in plain fp32 PyTorch: the oracle that every faster implementation is measured against.

Parameter names equal those of LightlyTrain's files, so a checkpoint's weights load as they are.
DINOv3: Simeoni et al. 2025, arXiv:2508.10104. EoMT: Kerssies et al., CVPR 2025, arXiv:2503.19108.

Shapes: B crops, C = embed_dim, Q queries, P = grid_size^2 patches, N tokens, K classes.
Token order: [Q queries (in joint blocks)] [class token] [register tokens] [P patches, row by row].
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasteomt.model.spec import LAYER_NORM_EPS, ModelSpec

ROPE_BASE = 100.0


def rope_periods(head_dim: int) -> Tensor:
    """The head_dim/4 RoPE periods, (head_dim / 4,) fp32: base^(4 i / head_dim)."""
    return ROPE_BASE ** (2 * torch.arange(head_dim // 4, dtype=torch.float32) / (head_dim // 2))


def rope_tables(periods: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Sine and cosine of axial RoPE on a grid of patch centres scaled to [-1, 1].

    Args:
        periods: (head_dim / 4,), in units of the scaled coordinate.

    Returns:
        sin and cos, each (height * width, head_dim), fp32: angles of y, then of x, then both again.
    """
    y, x = (
        (torch.arange(n, dtype=torch.float32, device=periods.device) + 0.5) / n * 2 - 1
        for n in (height, width)
    )
    return rope_at(periods.float(), y, x)


def rope_at(periods: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """`rope_tables` of the grid of rows y (height,) and columns x (width,), in [-1, 1]."""
    coordinates = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1)
    angles = (2 * math.pi * coordinates[:, :, None] / periods).flatten(1).tile(2)
    return angles.sin(), angles.cos()


def apply_rope(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Rotate the last P rows of x (B, heads, N, head_dim) by (P, head_dim) tables; the rows before pass."""
    prefix, patches = x.split([x.shape[-2] - sin.shape[0], sin.shape[0]], dim=-2)
    patches = patches.float()
    first, second = patches.chunk(2, dim=-1)
    rotated = patches * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([prefix, rotated.to(prefix.dtype)], dim=-2)


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class MaskedBiasLinear(nn.Linear):
    """qkv: the key part of the bias is masked to zero, as DINOv3 trains it."""

    bias_mask: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 3 * dim)
        q, k, v = torch.ones(3, dim).unbind()
        self.register_buffer("bias_mask", torch.cat([q, 0 * k, v]))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias * self.bias_mask)


class Attention(nn.Module):
    """Multi-head self-attention with RoPE on the patch tokens."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        dim = spec.embed_dim
        self.qkv = MaskedBiasLinear(dim) if spec.qkv_bias else nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(spec.embed_dim, spec.embed_dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(apply_rope(q, *rope), apply_rope(k, *rope), v)
        return self.proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class SwiGlu(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(dim, hidden)
        self.w3 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


class Block(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(spec.embed_dim, eps=LAYER_NORM_EPS)
        self.attn = Attention(spec)
        self.ls1 = LayerScale(spec.embed_dim)
        self.norm2 = nn.LayerNorm(spec.embed_dim, eps=LAYER_NORM_EPS)
        ffn = {"mlp": Mlp, "swiglu": SwiGlu}[spec.ffn]
        self.mlp = ffn(spec.embed_dim, spec.ffn_hidden)
        self.ls2 = LayerScale(spec.embed_dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), rope))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, spec.embed_dim, kernel_size=spec.patch_size, stride=spec.patch_size)

    def forward(self, crops: Tensor) -> Tensor:
        return self.proj(crops).flatten(2).transpose(1, 2)


class RopePeriods(nn.Module):
    periods: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("periods", rope_periods(head_dim))


class Backbone(nn.Module):
    """DINOv3's parameters by LightlyTrain's names; `Eomt.forward` drives the blocks."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(spec)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, spec.embed_dim))
        self.storage_tokens = nn.Parameter(torch.zeros(1, spec.num_register_tokens, spec.embed_dim))
        self.mask_token = nn.Parameter(torch.zeros(1, spec.embed_dim))
        self.rope_embed = RopePeriods(spec.embed_dim // spec.num_heads)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.depth))
        self.norm = nn.LayerNorm(spec.embed_dim, eps=LAYER_NORM_EPS)

    def tokens(self, crops: Tensor) -> Tensor:
        """(B, 3, S, S) normalised RGB -> (B, 1 + registers + P, C)."""
        b = crops.shape[0]
        prefix = [self.cls_token.expand(b, -1, -1), self.storage_tokens.expand(b, -1, -1)]
        return torch.cat([*prefix, self.patch_embed(crops)], dim=1)


class ScaleBlock(nn.Module):
    """Twice the resolution: ConvTranspose 2x2 -> GELU -> depthwise 3x3 -> LayerNorm over channels."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(dim, dim, kernel_size=2, stride=2)
        self.conv2 = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(F.gelu(self.conv1(x)))
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Eomt(nn.Module):
    """The whole network: normalised crops in, mask and class logits of the last layer out."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        dim = spec.embed_dim
        self.backbone = Backbone(spec)
        self.queries = nn.Embedding(spec.num_queries, dim)
        self.class_head = nn.Linear(dim, len(spec.class_ids) + 1)
        self.mask_head = nn.Sequential(
            nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)
        )
        self.upscale = nn.Sequential(*(ScaleBlock(dim) for _ in range(spec.num_upscale_blocks)))

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Args: crops (B, 3, S, S), normalised RGB.

        Returns:
            mask logits (B, Q, s, s) with s = grid side * 2^upscale blocks, class logits (B, Q, K + 1).
        """
        spec = self.spec
        x = self.backbone.tokens(crops)
        height, width = (side // spec.patch_size for side in crops.shape[-2:])
        rope = rope_tables(self.backbone.rope_embed.periods, height, width)
        first_joint = spec.depth - spec.num_joint_blocks
        for i, block in enumerate(self.backbone.blocks):
            if i == first_joint:
                x = torch.cat([self.queries.weight.expand(x.shape[0], -1, -1), x], dim=1)
            x = block(x, rope)
        return self.head(self.backbone.norm(x), height, width)

    def head(self, x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Normalised tokens (B, Q + prefix + P, C) -> mask logits, class logits."""
        queries = x[:, : self.spec.num_queries]
        patches = x[:, self.spec.num_queries + self.spec.num_prefix_tokens :]
        features = self.upscale(patches.transpose(1, 2).unflatten(2, (height, width)))
        masks = torch.einsum("bqc,bchw->bqhw", self.mask_head(queries), features)
        return masks, self.class_head(queries)
