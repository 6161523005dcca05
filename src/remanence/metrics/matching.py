"""The assignments of candidates to true records that the papers use, by name, because scores depend on them."""

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
_BLOCK = 2**16  # pairs of the greedy pass considered together


@final
@dataclass(frozen=True, kw_only=True)
class Matching:
    """Candidates (m, ...) and truth (n, ...) -> (n,) int64: the index of the candidate of each record, or -1."""

    name: str
    pair: Callable[[Tensor, Tensor], Tensor] = field(repr=False)

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        check_records(candidates, truth)
        with torch.no_grad():
            return self.pair(candidates, truth)


def _identity(candidates: Tensor, truth: Tensor) -> Tensor:
    """The k-th candidate for the k-th record, as where there is one release for each record (RecoNN)."""
    if len(candidates) != len(truth):
        message = (
            f"`candidates` must be as many as the truth's {len(truth)} records for the matching `identity`, "
            f"got {len(candidates)}: use `hungarian` or `nearest_ncc`"
        )
        raise BadInput(message, code="shape-mismatch", argument="candidates")
    return torch.arange(len(truth), device=truth.device)


def _nearest_ncc(candidates: Tensor, truth: Tensor) -> Tensor:
    """The nearest candidate of each record (Buzaglo et al. 2023), which several may share; CIFAR at half resolution."""
    if len(candidates) == 0:
        return _unmatched(truth)
    if truth.ndim == 4 and min(truth.shape[2:]) >= 32:
        candidates, truth = half(candidates), half(truth)
    # A diverged candidate is NaN, and NaN would count as the smallest.
    return ncc_distance(candidates, truth).nan_to_num(nan=torch.inf).argmin(0)


def greedy(metric: Metric) -> Matching:
    """Greedy one-to-one matching by `metric`, as for SimuDy; ties go to the first record."""
    return Matching(name=f"greedy_{metric.name}", pair=_Greedy(metric))


@final
@dataclass(frozen=True)
class _Greedy:
    """One to one, the best pair first, then the best of the remaining; SimuDy's paper does so on normalised images."""

    metric: Metric

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        score = self.metric.pairwise(candidates, truth).double() * (1 if self.metric.higher_is_better else -1)
        ranked = score.nan_to_num(nan=-torch.inf).T.cpu().numpy()  # a diverged candidate is NaN
        return torch.from_numpy(_greedy(ranked)).to(truth.device)


def _greedy(score: NDArray[np.float64]) -> NDArray[np.int64]:
    """(records,): greedy assignment by one sort and one pass over the scores (records, candidates)."""
    match = np.full(score.shape[0], NONE, dtype=np.int64)
    free = np.ones(score.shape[1], dtype=np.bool_)
    order = np.argsort(-score, axis=None, kind="stable")
    for start in range(0, order.size, _BLOCK):
        rows, columns = np.unravel_index(order[start : start + _BLOCK], score.shape)
        open_pairs = (match[rows] == NONE) & free[columns]  # few after the first block, so the loop stays short
        for row, column in zip(rows[open_pairs].tolist(), columns[open_pairs].tolist(), strict=True):
            if match[row] == NONE and free[column]:
                match[row], free[column] = column, False
    return match


def _hungarian(candidates: Tensor, truth: Tensor) -> Tensor:
    """The optimal one-to-one assignment by the sum of SSIM, or of squared errors where an SSIM window does not fit."""
    from scipy.optimize import linear_sum_assignment

    if truth.ndim == 4 and min(truth.shape[2:]) >= SKIMAGE.window:
        cost = -SSIM.pairwise(candidates, truth).nan_to_num(nan=-2.0)  # diverged candidates below all others
    else:
        cost = MSE.pairwise(candidates, truth).nan_to_num(nan=2.0)  # worse than any error in [0, 1]
    candidate, record = linear_sum_assignment(cost.double().cpu().numpy())
    match = _unmatched(truth)
    match[torch.from_numpy(record).to(match.device)] = torch.from_numpy(candidate).to(match.device)
    return match


def _unmatched(truth: Tensor) -> Tensor:
    return torch.full((len(truth),), NONE, dtype=torch.int64, device=truth.device)


identity = Matching(name="identity", pair=_identity)
nearest_ncc = Matching(name="nearest_ncc", pair=_nearest_ncc)
greedy_ssim = greedy(SSIM)
hungarian = Matching(name="hungarian", pair=_hungarian)

MATCHINGS = (identity, nearest_ncc, greedy_ssim, hungarian)
