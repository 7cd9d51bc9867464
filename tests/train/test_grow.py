"""A grown model does about what the shallow one did, and every block takes part."""

from __future__ import annotations

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.model.reference import Eomt
from fasteomt.model.spec import ModelSpec
from fasteomt.train.grow import grown, shallow
from fasteomt.train.pretrain import initialise


def test_grown_model_computes_nearly_the_same() -> None:
    torch.manual_seed(0)
    deep = ModelSpec.from_name("vitt16", image_size=(64, 64), depth=12, num_joint_blocks=3)
    spec = shallow(deep, 3)
    assert (spec.depth, spec.num_joint_blocks) == (4, 1)
    small = Eomt(spec).eval()
    initialise(small)
    large, stacked = Eomt(deep).eval(), Eomt(deep).eval()
    large.load_state_dict(grown(small.state_dict(), 3))
    stacked.load_state_dict(grown(small.state_dict(), 3))
    crops = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        for block in stacked.backbone.blocks:
            block.ls1.gamma *= 3
            block.ls2.gamma *= 3
        before, after, plain = small(crops)[0], large(crops)[0], stacked(crops)[0]
        one = large.backbone.blocks[4].ls1.gamma.clone()
        large.backbone.blocks[4].ls1.gamma.zero_()
        without = large(crops)[0]
    assert (after - before).norm() < 0.25 * before.norm()
    assert (after - before).norm() < 0.3 * (plain - before).norm()  # steps as large as before go astray
    assert torch.allclose(one * 3, small.backbone.blocks[1].ls1.gamma)
    assert (without - after).norm() / after.norm() > 1e-4


@pytest.mark.parametrize("times", [0, 2, 5])
def test_depth_that_does_not_divide(times: int) -> None:
    with pytest.raises(InputError, match="divisor"):
        shallow(ModelSpec.from_name("vitt16"), times)
