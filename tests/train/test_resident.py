"""Windows cut on the device: where they lie, and that image and mask stay together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fasteomt.data.dataset import SegmentationSet, open_dataset
from fasteomt.data.labelled import labelled
from fasteomt.data.synth import write_dataset
from fasteomt.train.resident import IGNORE, Resident, recolour


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SegmentationSet:
    root = tmp_path_factory.mktemp("resident") / "data"
    write_dataset(root, train=6, valid=0, size=(160, 120), seed=0, workers=1)
    return open_dataset(root, "train")


@pytest.fixture(scope="module")
def resident(data: SegmentationSet) -> Resident:
    return Resident.load(data, torch.device("cpu"), workers=1)


def test_middle_window_is_the_resized_middle_of_the_image(data, resident) -> None:
    compared = 0
    for i, sample in enumerate(data):
        height, width = sample.size
        short = min(height, width)
        images, targets = resident.windows(torch.tensor([i]), short, 1.0, random=False)
        top, left = (height - short) / 2, (width - short) / 2
        if top % 1 or left % 1:
            continue
        rows, columns = slice(int(top), int(top) + short), slice(int(left), int(left) + short)
        expected = torch.from_numpy(sample.rgb().copy()).permute(2, 0, 1)[:, rows, columns] / 255
        assert (images[0] - expected).abs().max() < 2e-3
        assert torch.equal(targets[0], torch.from_numpy(sample.mask())[rows, columns].long())
        compared += 1
    assert compared >= 3


def test_random_windows_keep_image_and_target_together(data) -> None:
    """Paint the image with its own target: whatever the window, both must still agree."""
    painted = Resident.load(data, torch.device("cpu"), workers=1)
    painted.images[:] = ((painted.targets == 1).to(torch.uint8) * 255)[:, None]
    torch.manual_seed(0)
    images, targets = painted.windows(torch.arange(6).repeat(8), 64, 0.5, random=True)
    bright = images[:, 0] > 0.5
    assert (bright == (targets == 1)).float().mean() > 0.98
    assert 0.02 < bright.float().mean() < 0.7


def test_new_images_take_the_place_of_the_oldest() -> None:
    resident = Resident(5, 8, [0, 7], torch.device("cpu"))
    assert len(resident) == 0
    for value in range(1, 8):
        rgb = np.full((4, 8, 3), value, np.uint8)
        resident.put([labelled(rgb, np.full((4, 8), 7 if value % 2 else 3, np.uint8))])
        assert len(resident) == min(value, 5)
        assert set(resident.draw(100).tolist()) == set(range(len(resident)))
    assert [int(image[0, 0, 0]) for image in resident.images] == [6, 7, 3, 4, 5]
    assert [int(target[0, 0]) for target in resident.targets] == [IGNORE, 1, 1, IGNORE, 1]  # 3 is no class
    assert (resident.targets[:, 4:] == IGNORE).all()


def test_recolour_stays_in_range_and_keeps_edges() -> None:
    torch.manual_seed(0)
    images = torch.zeros(32, 3, 4, 4)
    images[..., 2:] = 1
    changed = recolour(images)
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert (changed[..., 2:].mean(dim=(1, 2, 3)) > changed[..., :2].mean(dim=(1, 2, 3))).all()
    assert (changed[..., :2] == changed[..., :1]).all()
