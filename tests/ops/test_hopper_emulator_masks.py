"""The Hopper mask kernel's source run by an emulator of Hopper; `hopper_emulator` says what that can show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hopper_emulator import Edit, emulator, fault_of, needs_compiler
from torch import Tensor

from fasteomt.ops.depthwise_masks import cuda, in_range, reference
from fasteomt.ops.depthwise_masks.cuda import Config
from fasteomt.ops.grid import Grid

BF16, FP16 = torch.bfloat16, torch.float16
EPS = 1e-5

pytestmark = needs_compiler


@dataclass(frozen=True)
class Case:
    """`most`: columns of a product, few so that queries are several blocks; `massive`: the first channel's
    factor."""

    grid: Grid
    queries: int
    channels: int
    config: Config
    dtype: torch.dtype = BF16
    wide: bool = True
    most: int = 0
    massive: float = 1.0


# Crops that are whole tiles and of other sizes, smaller than a tile and of many; rings shorter than the
# channels and longer; as many queries as make the row of ones the last of its group, and the first.
CASES = {
    "two crops, two tiles each": Case(Grid(2, 8, 2), 10, 128, Config(2, 2)),
    "tiles across borders": Case(Grid(1, 5, 2), 23, 192, Config(2, 3), FP16),
    "three crops, smaller than a tile": Case(Grid(3, 3, 1), 40, 192, Config(2, 2), FP16, wide=False),
    "no doubling, one query": Case(Grid(2, 7, 0), 1, 64, Config(2, 2)),
    "three doublings": Case(Grid(1, 3, 3), 7, 128, Config(2, 2), wide=False),
    "one part": Case(Grid(2, 5, 1), 16, 320, Config(1, 3)),
    "one part, many tiles": Case(Grid(1, 9, 2), 8, 128, Config(1, 2), FP16),
    "one part, as many queries as it takes": Case(Grid(1, 2, 2), 207, 128, Config(1, 2)),
    "as many queries as two parts take": Case(Grid(1, 3, 2), 119, 128, Config(2, 2)),
    "several blocks of queries": Case(Grid(2, 3, 2), 45, 192, Config(2, 2), FP16, most=32),
    "several blocks of queries, one part": Case(Grid(2, 3, 1), 39, 128, Config(1, 2), most=24),
    "one channel dwarfs the others": Case(Grid(2, 3, 2), 10, 128, Config(2, 2), massive=1000.0),
}


class Inputs:
    """Random ones for a case, the result of the same arithmetic, and how far sums in another order may lie
    from it."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        grid, channels, count = case.grid, case.channels, case.grid.crops * case.queries
        x = torch.randn(grid.pixels, channels) + 0.3
        x[:, 0] *= case.massive
        # Bugs may read a bit beyond.
        beyond = torch.full((2 * grid.resolution * 4**grid.level, channels), 9.0)
        self.x = torch.cat((x, beyond)).to(case.dtype)[: len(x)]
        queries = torch.randn(count, channels).to(case.dtype)
        weight, norm_weight, norm_bias = torch.randn(11, channels).split([9, 1, 1])
        self.taps, self.eps = in_range(weight, EPS)
        self.folded = torch.empty(grid.crops, case.queries + 1, channels, dtype=case.dtype)
        self.sums = torch.empty(2, count)
        reference.fold(queries, norm_weight[0], norm_bias[0], self.folded, self.sums)
        self.expected, self.slack = self._expected(case)

    def _expected(self, case: Case) -> tuple[Tensor, Tensor]:
        grid, channels = case.grid, case.channels
        places = grid.raster().view(grid.crops, -1).argsort(dim=1)
        images = torch.stack(
            [x[order] for x, order in zip(self.x.view(grid.crops, -1, channels), places, strict=True)]
        )
        images = images.double().mT.unflatten(2, (grid.resolution, -1))
        taps = self.taps.double().T.reshape(channels, 1, 3, 3)
        v = F.conv2d(images, taps, padding=1, groups=channels).flatten(2)
        rounded, folded = v.to(case.dtype).double(), self.folded[:, :-1].double()
        mean = rounded.mean(dim=1, keepdim=True)
        scale = ((v**2).mean(dim=1, keepdim=True) - mean**2 + self.eps).rsqrt()
        of_folded, of_bias = self.sums.double().view(2, grid.crops, -1, 1)
        shape = (grid.crops, -1, grid.resolution, grid.resolution)
        logits = ((folded @ rounded - mean * of_folded) * scale + of_bias).view(shape)
        # One value may have been rounded to its other neighbour.
        largest = (folded.abs()[:, :, :, None] * v.abs()[:, None]).amax(dim=2)
        return logits, (torch.finfo(case.dtype).eps * scale * largest).view(shape)


def wrong(case: Case, seed: int = 0, bug: tuple[Edit, ...] = ()) -> str:
    """What is wrong with the kernel's result, or ''."""
    inputs = Inputs(case)
    dtype = torch.float32 if case.wide else case.dtype
    out = torch.full(inputs.expected.shape, torch.nan, dtype=dtype)
    rows = out.view(-1, out.shape[-1])

    def launch(room: Tensor) -> None:
        given = (inputs.x, inputs.taps, inputs.eps, inputs.folded, inputs.sums, room.view(out.shape))
        cuda.run(*given, case.grid, config=case.config)

    with pytest.MonkeyPatch.context() as patch, emulator().in_place_of_gpu(132, seed, bug):
        if case.most:
            patch.setattr(cuda, "_MOST_COLUMNS", {case.config.parts: case.most})
        if fault := fault_of(launch, rows):
            return fault
    rounding = torch.finfo(dtype).eps / 2 * inputs.expected.abs()
    close = (out - inputs.expected).abs() <= 1.01 * inputs.slack + rounding + 1e-4
    return "" if close.all() else f"{(~close).sum()} of {close.numel()} results are wrong"


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_reference_does(name: str) -> None:
    assert not wrong(CASES[name])


TWO_PARTS, ONE_PART = CASES["tiles across borders"], CASES["one part"]
BLOCKS = CASES["several blocks of queries"]
BUGS: dict[str, tuple[Case, tuple[Edit, ...]]] = {
    "a stage is given back before its products have ended": (
        ONE_PART,
        (
            ("            if (part == 0 && step > 0 && lane == 0) barrier_arrive(used);\n", ""),
            (
                "            multiply_commit();\n",
                "            multiply_commit();\n            if (lane == 0) barrier_arrive(used);\n",
            ),
            ("    if (lane == 0) barrier_arrive(used);\n    const int pixel", "    const int pixel"),
        ),
    ),
    "a stage is given back when its first part is done": (
        BLOCKS,
        (
            ("if (part == 0 && step > 0 && lane == 0) barrier_arrive(used);", ""),
            (
                "            used = empty + 8 * at.stage;",
                "used = empty + 8 * at.stage;\nif (part == 0 && lane == 0) barrier_arrive(used);",
            ),
            ("    if (lane == 0) barrier_arrive(used);\n    const int pixel", "    const int pixel"),
        ),
    ),
    "what products read is overwritten": (TWO_PARTS, (("            multiply_wait<0>();\n", ""),)),
    "what products read is overwritten, one part": (
        ONE_PART,
        (("const int buffer = step % 2;", "const int buffer = 0;"),),
    ),
    "products start before all warps have stored": (
        TWO_PARTS,
        (("            warpgroup_sync(group);\n            if (part == 0", "            if (part == 0"),),
    ),
    "products read what was stored without a fence": (
        TWO_PARTS,
        (("            fence_async();\n", ""),),
    ),
    "copies are not waited for": (
        TWO_PARTS,
        (("barrier_init(full + 8 * stage, COPIERS + 1);", "barrier_init(full + 8 * stage, COPIERS);"),),
    ),
    "the first round waits for readers": (TWO_PARTS, (("at.parity ^ 1);", "at.parity);"),)),
    "places are read before all are known": (TWO_PARTS, (("    warpgroup_sync(GROUPS);\n", ""),)),
    "squares are read before all are there": (
        TWO_PARTS,
        (
            (
                "square);\n    warpgroup_sync(group);\n",
                "square);\n",
            ),
        ),
    ),
    "barriers are used before they are made": (TWO_PARTS, (("    __syncthreads();\n", ""),)),
    "a tile's neighbours wrap round": (
        TWO_PARTS,
        (("x >= 0 && x < tile.size;\n        const u32", "x >= 0 && x <= tile.size;\n        const u32"),),
    ),
    "neighbours below the crop are the next one's": (
        TWO_PARTS,
        (("y >= 0 && y < tile.size &&", "y >= 0 && y <= tile.size &&"),),
    ),
    "lines beyond the crop are written": (
        TWO_PARTS,
        (("{y < tile.size && x < tile.size,", "{x < tile.size,"),),
    ),
    "columns beyond the crop are written": (
        TWO_PARTS,
        (("y < tile.size && x + 8 < tile.size}", "y < tile.size}"),),
    ),
    "queries beyond the last are written": (
        TWO_PARTS,
        (("if (inside[half] && query + 1 < tile.queries)", "if (inside[half])"),),
    ),
    "the second warpgroup convolves the first one's lines": (
        TWO_PARTS,
        (("(group * LINES * LOADED_X + warp * STRIP_X)", "(warp * STRIP_X)"),),
    ),
    "chunks are swizzled by other rows": (TWO_PARTS, (("(lane / 4 ^ row % 8)", "(lane / 4 ^ i)"),)),
    "taps are those of the first channels": (TWO_PARTS, (("        taps += SLICE;\n", ""),)),
    "ones are taken from another column": (
        BLOCKS,
        (("job.queries - ONES + BLOCK_Q - LAST_ROWS;", "tile.first + BLOCK_Q - LAST_ROWS;"),),
    ),
    "squares are summed over half of the lanes": (
        TWO_PARTS,
        (
            (
                "numbers[i] = (upper ? high : numbers[i]) +",
                "if (APART > 1) numbers[i] = (upper ? high : numbers[i]) +",
            ),
        ),
    ),
    "the stage is too small for the taps": (
        ONE_PART,
        (("(QUERY_BYTES + PIXEL_BYTES + TAP_BYTES + 1023)", "(QUERY_BYTES + PIXEL_BYTES + 1023)"),),
    ),
    "every block has the first one's sums": (
        BLOCKS,
        (
            (
                "job.sums + tile.crop * job.queries + tile.first + query;",
                "job.sums + tile.crop * job.queries + query;",
            ),
        ),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_finds_a_planted_bug(bug: str) -> None:
    case, edits = BUGS[bug]
    assert any(wrong(case, seed, edits) for seed in range(8))
