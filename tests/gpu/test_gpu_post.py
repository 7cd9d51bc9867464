"""Class ids on a GPU, against the reference: all but near-ties are equal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fasteomt.engine.graph import capture
from fasteomt.model.tiling import Tiling
from fasteomt.ops import implementation
from fasteomt.ops.geometry import Geometry
from fasteomt.ops.post import Problem, reference
from fasteomt.ops.target import Target

pytestmark = pytest.mark.gpu


class Case:
    """Smooth masks, so that neighbouring pixels agree, and buffers for one implementation."""

    def __init__(
        self, frames: list[tuple[int, int]], queries: int, classes: int, size: int, dtype: torch.dtype
    ) -> None:
        torch.manual_seed(0)
        tilings = [Tiling.of(height, width, size) for height, width in frames]
        per_frame = max(len(tiling.starts) for tiling in tilings)
        self.crops = per_frame * len(frames)
        side = size // 4
        self.problem = Problem(self.crops, queries, classes, side, size)
        coarse = 8 * torch.randn(self.crops, queries, 8, 8, device="cuda")
        masks = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic") - 2
        self.masks = masks.to(dtype)
        self.classes = (3 * torch.randn(self.crops, queries, classes + 1, device="cuda")).to(dtype)
        self.tables = self.tables_of(tilings, per_frame)
        self.ids = torch.randperm(classes, device="cuda", dtype=torch.int32)
        self.capacity = max(height * width for height, width in frames)

    @staticmethod
    def tables_of(tilings: list[Tiling], per_frame: int) -> Tensor:
        found = [Geometry(t.height, t.width, t.resized, t.starts, t.axis) for t in tilings]
        return torch.stack([geometry.table(per_frame) for geometry in found]).cuda()

    def buffers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """weights, scores, out, sums: never what a kernel would write."""
        problem, frames = self.problem, len(self.tables)
        return (
            torch.full((self.crops, problem.queries, problem.classes), torch.nan, device="cuda"),
            torch.full((self.crops, problem.classes, problem.size, problem.size), torch.nan, device="cuda"),
            torch.full((frames, self.capacity), 77, device="cuda").to(torch.uint16),
            torch.full((frames, problem.classes, 2), -1, device="cuda"),
        )


@pytest.mark.parametrize(
    ("frames", "queries", "classes", "size"),
    [
        ([(1440, 1900)], 100, 2, 512),
        ([(1900, 1440)], 200, 1, 512),
        ([(1080, 2520)], 50, 8, 512),
        ([(300, 400), (512, 512)], 100, 3, 512),
        ([(1440, 1900)], 100, 150, 512),
        ([(65, 49)], 7, 300, 512),
        ([(2000, 2600)], 100, 19, 640),
        ([(4320, 7680)], 100, 2, 512),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ids_are_the_references(
    frames: list[tuple[int, int]], queries: int, classes: int, size: int, dtype: torch.dtype
) -> None:
    case = Case(frames, queries, classes, size, dtype)
    module = implementation("post", "fused", Target.of(case.masks.device), case.problem)
    given = case.masks, case.classes, case.tables, case.ids
    expected, found, again = case.buffers(), case.buffers(), case.buffers()
    reference.run(*given, *expected)
    module.run(*given, *found)
    module.run(*given, *again)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)
    for frame, (height, width) in enumerate(frames):
        pixels = slice(0, height * width)
        wrong = found[2][frame, pixels].int() != expected[2][frame, pixels].int()
        assert wrong.float().mean() <= 1e-4
        assert (found[2][frame, height * width :].int() == 77).all()
        assert found[3][frame, :, 0].sum() == height * width
        moved = (found[3][frame] - expected[3][frame]).abs().sum(0) / expected[3][frame].sum(0)
        assert (moved <= 3e-4).all()
    assert torch.equal(found[2].int(), again[2].int()) and torch.equal(found[3], again[3])


def test_a_replay_takes_a_frame_of_another_size() -> None:
    case = Case([(1440, 1900)], 100, 2, 512, torch.bfloat16)
    module = implementation("post", "fused", Target.of(case.masks.device), case.problem)
    given = case.masks, case.classes, case.tables, case.ids
    buffers, expected = case.buffers(), case.buffers()
    replay = capture(lambda: module.run(*given, *buffers))
    case.masks.neg_()
    case.tables.copy_(Case.tables_of([Tiling.of(900, 701, 512)], 2))
    for out in (buffers[2], expected[2]):
        out.fill_(77)
    module.run(*given, *expected)
    replay.replay()
    assert torch.equal(buffers[2].int(), expected[2].int()) and torch.equal(buffers[3], expected[3])
    assert (buffers[2][0, 900 * 701 :].int() == 77).all()
