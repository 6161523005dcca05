"""Which candidate stands for which truth record: the pairings of the papers, named, because scores depend on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.base import Metric, check_records
from remanence.metrics.pixel import MSE, half, ncc_distance
from remanence.metrics.ssim import SKIMAGE, SSIM

NONE = -1  # the index of a truth record that got no candidate
_GULP = 2**16  # pairs of the greedy pass looked at together


@final
@dataclass(frozen=True, kw_only=True)
class Matching:
    """Candidates (m, ...) and truth (n, ...) -> for each truth record the index of its candidate, or -1: int64 (n,)."""

    name: str
    pair: Callable[[Tensor, Tensor], Tensor] = field(repr=False)

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        check_records(candidates, truth)
        with torch.no_grad():
            return self.pair(candidates, truth)


def _identity(candidates: Tensor, truth: Tensor) -> Tensor:
    """The k-th reconstruction belongs to the k-th record: one release for each record (RecoNN)."""
    if len(candidates) != len(truth):
        raise BadInput(
            f"`candidates` must be as many as the truth's {len(truth)} records for the matching `identity`, "
            f"got {len(candidates)}: use `hungarian` or `nearest_ncc`"
        )
    return torch.arange(len(truth), device=truth.device)


def _nearest_ncc(candidates: Tensor, truth: Tensor) -> Tensor:
    """Buzaglo et al. 2023: several truth records may share a candidate; CIFAR is searched at half resolution."""
    if len(candidates) == 0:
        return _unmatched(truth)
    if truth.ndim == 4 and min(truth.shape[2:]) >= 32:
        candidates, truth = half(candidates), half(truth)
    # A diverged candidate is NaN, and NaN would count as the smallest.
    return ncc_distance(candidates, truth).nan_to_num(nan=torch.inf).argmin(0)


def greedy(metric: Metric) -> Matching:
    """SimuDy: the best pair by `metric` of those left, again and again; ties go to the first truth record."""
    return Matching(name=f"greedy_{metric.name}", pair=_BestLeft(metric))


@final
@dataclass(frozen=True)
class _BestLeft:
    """One to one, the best pair first, then the best of those left; SimuDy's paper does so by normalised images."""

    metric: Metric

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        score = self.metric.pairwise(candidates, truth).double() * (1 if self.metric.higher_is_better else -1)
        ranked = score.nan_to_num(nan=-torch.inf).T.cpu().numpy()  # a diverged candidate is NaN
        return torch.from_numpy(_greedy(ranked)).to(truth.device)


def _greedy(score: NDArray[np.float64]) -> NDArray[np.int64]:
    """One sort and one pass. Rounds of mutually best pairs need a round per pair when the candidates look alike."""
    match = np.full(score.shape[0], NONE, dtype=np.int64)
    free = np.ones(score.shape[1], dtype=np.bool_)
    order = np.argsort(-score, axis=None, kind="stable")
    for start in range(0, order.size, _GULP):
        rows, columns = np.unravel_index(order[start : start + _GULP], score.shape)
        left = (match[rows] == NONE) & free[columns]  # few after the first gulp, so the loop stays short
        for row, column in zip(rows[left].tolist(), columns[left].tolist(), strict=True):
            if match[row] == NONE and free[column]:
                match[row], free[column] = column, False
    return match


def _hungarian(candidates: Tensor, truth: Tensor) -> Tensor:
    """The one-to-one pairing with the best sum: of SSIM, or of squared errors where an SSIM window does not fit."""
    from scipy.optimize import linear_sum_assignment

    if truth.ndim == 4 and min(truth.shape[2:]) >= SKIMAGE.window:
        cost = -_similarity(candidates, truth)
    else:
        cost = MSE.pairwise(candidates, truth).nan_to_num(nan=2.0)  # worse than any error in [0, 1]
    taken, served = linear_sum_assignment(cost.double().cpu().numpy())
    match = _unmatched(truth)
    match[torch.from_numpy(served).to(match.device)] = torch.from_numpy(taken).to(match.device)
    return match


def _similarity(candidates: Tensor, truth: Tensor) -> Tensor:
    """SSIM of all pairs, a diverged (NaN) candidate below everything that can be scored."""
    return SSIM.pairwise(candidates, truth).nan_to_num(nan=-2.0)


def _unmatched(truth: Tensor) -> Tensor:
    return torch.full((len(truth),), NONE, dtype=torch.int64, device=truth.device)


identity = Matching(name="identity", pair=_identity)
nearest_ncc = Matching(name="nearest_ncc", pair=_nearest_ncc)
greedy_ssim = greedy(SSIM)
hungarian = Matching(name="hungarian", pair=_hungarian)

MATCHINGS = (identity, nearest_ncc, greedy_ssim, hungarian)
