"""The loss without a matcher is least where masks and classes are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fasteomt.train.fixed_assignment import fixed_assignment_loss


def test_loss_is_least_for_the_truth() -> None:
    targets = torch.zeros(2, 16, 16, dtype=torch.long)
    targets[0, :8] = 1
    targets[1, 12:] = 255
    one_hot = torch.stack([(targets == k).float() for k in range(2)], dim=1)
    right = F.avg_pool2d(one_hot, 4) * 40 - 20
    masks = torch.cat([right, torch.randn(2, 3, 4, 4)], dim=1)
    classes = torch.full((2, 5, 3), -20.0)
    classes[:, 2:, 2] = 20
    classes[:, 0, 0] = 20
    classes[0, 1, 1] = 20  # image 1 shows no object of class 1
    classes[1, 1, 2] = 20
    best = fixed_assignment_loss(masks, classes, targets, 2)
    assert best < 0.02
    assert fixed_assignment_loss(-masks, classes, targets, 2) > 5
    assert fixed_assignment_loss(masks, -classes, targets, 2) > 5
    ignored = masks.clone()
    ignored[1, :, 3] = 100.0
    assert fixed_assignment_loss(ignored, classes, targets, 2) == pytest.approx(best.item())
