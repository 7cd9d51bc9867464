"""The reference model against LightlyTrain itself: same file, same images, same masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fasteomt import accelerate
from fasteomt.checkpoint import Checkpoint, random_checkpoint, read, write_export
from fasteomt.compat.lightly import MODEL_ATTRIBUTES
from fasteomt.engine import Engine
from fasteomt.errors import InputError
from fasteomt.model.spec import ModelSpec
from fasteomt.model.tiling import Tiling, class_map, class_scores, crops_of_frame
from fasteomt.stacks import STACKS

lightly_train = pytest.importorskip("lightly_train", reason="parity needs the extra 'train'")

IMAGES = [(512, 512), (1440, 1900), (640, 1333), (600, 3000), (97, 61)]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One model; `changes` are fields of its spec that differ from the architecture's defaults."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    images: tuple[tuple[int, int], ...] = tuple(IMAGES)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.changes.items())]).replace(" ", "")


# Small models of each kind: two patch sizes, both FFNs, sparse ids, one more upscale block.
ACCELERATED = [
    Case("vitt16", {"class_ids": (0, 255), "class_names": ("background", "head")}),
    Case(
        "vitt16",
        {
            "mean": (0.4, 0.5, 0.6),
            "std": (0.3, 0.2, 0.1),
            "class_ids": (7, 3, 300),
            "class_names": ("a", "b", "c"),
        },
        images=((97, 61),),
    ),
    Case("vits16plus"),
    Case("vitt32", {"num_queries": 50}),
    Case("vitt32", {"num_queries": 200, "num_upscale_blocks": 3}),
]
CASES = [
    *ACCELERATED,
    Case("vits16", {"num_queries": 50, "class_ignore_index": -100}),
    Case("vitt32", {"num_queries": 100, "image_size": (1024, 1024)}),
    Case("vitt16plus", {"num_joint_blocks": 4, "image_size": (640, 512)}, images=((640, 1333),)),
    Case("vitt16", {"image_size": (1024, 1024), "num_queries": 200}, images=((640, 1333),)),
]


def picture(height: int, width: int) -> Tensor:
    """(3, H, W) uint8 with structure at every scale, so that masks have regions and edges."""
    generator = torch.Generator().manual_seed(height * 10007 + width)
    image = torch.zeros(3, height, width)
    for cells in (2, 5, 13, 40):
        noise = torch.randn(1, 3, cells, cells, generator=generator)
        image += F.interpolate(noise, (height, width), mode="bicubic")[0]
    return ((image - image.min()) / (image.max() - image.min()) * 255).to(torch.uint8)


def balanced(checkpoint: Checkpoint, image: Tensor) -> Tensor:
    """A class bias for which the first two classes share the image's first crop; found by bisection."""
    spec = checkpoint.spec
    engine = Engine(spec, checkpoint.weights, STACKS["fp32"], CPU)
    tiling = Tiling.of(*image.shape[-2:], spec.crop_size)
    masks, classes = engine.logits(crops_of_frame(image, tiling, spec.mean, spec.std)[:1])
    further = torch.zeros(classes.shape[-1])
    further[2:-1] -= 5  # further classes may win somewhere, but stay rare
    low, high = -20.0, 20.0
    for _ in range(20):
        shift = further.clone()
        shift[1] = (low + high) / 2
        scores = class_scores(masks, classes + shift, 64)
        more = (scores[:, 1] > scores[:, 0]).float().mean() < 0.5
        low, high = (shift[1].item(), high) if more else (low, shift[1].item())
    return checkpoint.weights["class_head.bias"] + shift


@dataclass(frozen=True)
class Upstream:
    """What LightlyTrain's own steps give for an image: class maps (K, H, W) and the mask (H, W) of ids."""

    scores: Tensor
    mask: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, image: Tensor) -> Upstream:
        x, meta = model.preprocess_image(image)
        raw = model.forward_backend(model.preprocess_batch([x]))
        size = (meta["resized_h"], meta["resized_w"])
        crops = model.to_per_pixel_logits_semantic(*raw)
        scores = model.untile(crop_logits=crops, origins=meta["origins"], image_sizes=[size])[0]
        resized = F.interpolate(scores[None, :-1], image.shape[-2:], mode="bilinear")[0]
        return cls(resized, model.postprocess(raw, [meta])[0])


Pair = tuple[Case, Checkpoint, Any]


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A case, our reading of its export, and LightlyTrain's."""
    case: Case = request.param
    made = random_checkpoint(ModelSpec.from_name(case.name, **case.changes))
    path = write_export(tmp_path_factory.mktemp("export") / "exported_best.pt", made.spec, made.weights)
    return case, read(path), lightly_train.load_model(path, device="cpu")


def test_round_trip_gives_equal_tensors(pair: Pair) -> None:
    """Our export -> load_model -> the same tensors; our reader sees the same model in it."""
    case, ours, theirs = pair
    assert ours.spec == ModelSpec.from_name(case.name, **case.changes)
    state = theirs.state_dict()
    assert state.keys() == ours.weights.keys()
    assert all(torch.equal(state[name], weight) for name, weight in ours.weights.items())


def test_masks_equal_upstream(pair: Pair) -> None:
    """Class maps within 1e-4 of their maximum; masks equal wherever the margin exceeds 1e-4."""
    case, ours, theirs = pair
    for height, width in case.images:
        where = f"{case} {height}x{width}"
        image = picture(height, width)
        bias = balanced(ours, image)
        theirs.class_head.bias.data.copy_(bias)
        expected = Upstream.of(theirs, image)
        weights = ours.weights | {"class_head.bias": bias}
        scores = Engine(ours.spec, weights, STACKS["fp32"], CPU).scores(image)

        resized = F.interpolate(scores[None], (height, width), mode="bilinear")[0]
        assert (resized - expected.scores).abs().max() <= 1e-4 * expected.scores.max(), where

        mask = torch.tensor(ours.spec.class_ids)[class_map(scores, height, width).index]
        shares = [(expected.mask == i).float().mean().item() for i in ours.spec.class_ids[:2]]
        assert min(shares) >= 0.10, f"{where}: classes hold {shares}"
        best, second = expected.scores.topk(2, dim=0).values
        clear = best - second > 1e-4
        assert clear.float().mean() > 0.95, where
        assert (mask == expected.mask)[clear].float().mean() >= 0.9999, where


@pytest.mark.parametrize("pair", ACCELERATED, ids=str, indirect=True)
def test_accelerate_keeps_upstreams_masks_and_types(pair: Pair) -> None:
    """`predict`, `predict_batch`, `forward_backend` return what they did; `restore` gives them back."""
    _, ours, theirs = pair
    image = picture(97, 61)
    crop = crops_of_frame(image, Tiling.of(64, 64, 128), ours.spec.mean, ours.spec.std)
    own_mask = theirs.predict(image)
    with torch.no_grad():
        own_logits = theirs.forward_backend(crop)
    with accelerate(theirs):
        assert "predict" in theirs.__dict__
        mask = theirs.predict(image)
        batch = theirs.predict_batch([image, image[:, :64]])
        logits = theirs.forward_backend(crop)
        with pytest.raises(InputError, match="patched already"):
            accelerate(theirs)
    assert "predict" not in theirs.__dict__
    assert torch.equal(theirs.predict(image), own_mask)
    assert (mask.dtype, mask.device) == (own_mask.dtype, own_mask.device)
    assert (mask == own_mask).float().mean() >= 0.9999
    assert torch.equal(batch[0], mask)
    assert batch[1].shape == (64, 61)
    for a, b in zip(logits, own_logits, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def test_accelerate_refuses_another_model() -> None:
    with pytest.raises(InputError, match="Linear is not LightlyTrain's"):
        accelerate(torch.nn.Linear(2, 2))


def test_private_names_of_upstream_still_exist(pair: Pair) -> None:
    assert all(hasattr(pair[2], name) for name in MODEL_ATTRIBUTES)
