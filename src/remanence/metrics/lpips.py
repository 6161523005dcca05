"""LPIPS as a metric; see `remanence.models.lpips` for what it computes and which file it needs."""

import torch
from torch import Tensor

from remanence.metrics.base import Metric, paired, pairwise
from remanence.models.lpips import load_lpips

_BLOCK = 128  # images through the network at a time


@paired
def _lpips(candidates: Tensor, truth: Tensor) -> Tensor:
    lpips = load_lpips(truth)
    blocks = zip(candidates.split(_BLOCK), truth.split(_BLOCK), strict=True)
    return torch.cat([lpips(a, b) for a, b in blocks])


@pairwise
def _lpips_matrix(candidates: Tensor, truth: Tensor) -> Tensor:
    scores = truth.new_empty(len(candidates), len(truth))
    lpips = load_lpips(truth)
    # the features of one side of a tile at a time: those of a thousand images would take gigabytes
    for row, a in zip(scores.split(_BLOCK), candidates.split(_BLOCK), strict=True):
        left = lpips.embed(a)
        for tile, b in zip(row.split(_BLOCK, dim=1), truth.split(_BLOCK), strict=True):
            # |a|² + |b|² - 2ab by one matrix product is faster but loses the small distances
            root = torch.cdist(left, lpips.embed(b), compute_mode="donot_use_mm_for_euclid_dist")
            tile.copy_(root.square())
    return scores


LPIPS = Metric(name="lpips", paired=_lpips, pairwise=_lpips_matrix, higher_is_better=False, needs_images=True)
