"""EoMT's loss without a matcher: query k stands for class k."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NO_OBJECT_WEIGHT = 0.1
MASK_WEIGHT, DICE_WEIGHT, CLASS_WEIGHT = 5.0, 5.0, 2.0  # EoMT's


def fixed_assignment_loss(masks: Tensor, classes: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """EoMT's mask, dice and class loss with query k assigned to class k, the others to "no object".

    Args:
        masks: (B, Q, s, s) logits; classes: (B, Q, K + 1) logits; targets: (B, S, S) class index, anything
            past K - 1 is ignored.
    """
    cell = targets.shape[-1] // masks.shape[-1]
    one_hot = torch.stack([(targets == k).float() for k in range(num_classes)], dim=1)
    share = F.avg_pool2d(one_hot, cell)
    valid = share.sum(dim=1, keepdim=True)
    present = share.sum(dim=(2, 3)) > 0
    logits = masks[:, :num_classes].float()
    bce = F.binary_cross_entropy_with_logits(logits, share, reduction="none") * valid
    bce = bce.sum(dim=(2, 3)) / valid.sum(dim=(2, 3)).clamp_min(1)
    p = logits.sigmoid() * valid
    both, either = (p * share).sum(dim=(2, 3)), (p + share).sum(dim=(2, 3))
    dice = 1 - (2 * both + 1) / (either + 1)
    count = present.sum().clamp_min(1)
    wanted = torch.full(classes.shape[:2], num_classes, device=classes.device)
    each = torch.arange(num_classes, device=classes.device).expand_as(present)
    wanted[:, :num_classes] = torch.where(present, each, num_classes)
    # Filled in one go: storing one element would copy it from the host, which a graph can't record.
    weight = torch.where(
        torch.arange(num_classes + 1, device=classes.device) < num_classes, 1.0, NO_OBJECT_WEIGHT
    )
    class_loss = F.cross_entropy(classes.float().flatten(0, 1), wanted.flatten(), weight=weight)
    mask_loss = ((MASK_WEIGHT * bce + DICE_WEIGHT * dice) * present).sum() / count
    return mask_loss + CLASS_WEIGHT * class_loss
