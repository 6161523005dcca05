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
    """Candidates (m, ...) and truth (n, ...) -> (n,) int64: the index of the candidate of each record, or -1.

    `compare` gives a score (m, n) of each pair, and `assign` the candidates by these scores alone, so that many
    matchings of some of the same records need one comparison.
    """

    name: str
    compare: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    assign: Callable[[Tensor], Tensor] = field(repr=False)

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        return self.assign(self.scores(candidates, truth))

    def scores(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """The scores of all pairs, shape (m, n)."""
        check_records(candidates, truth)
        with torch.no_grad():
            return self.compare(candidates, truth)


def _no_scores(candidates: Tensor, truth: Tensor) -> Tensor:
    return truth.new_zeros(()).expand(len(candidates), len(truth))


def _identity(scores: Tensor) -> Tensor:
    """The k-th candidate for the k-th record, as where there is one release for each record (RecoNN)."""
    candidates, records = scores.shape
    if candidates != records:
        message = (
            f"`candidates` must be as many as the truth's {records} records for the matching `identity`, "
            f"got {candidates}: use `hungarian` or `nearest_ncc`"
        )
        raise BadInput(message, code="shape-mismatch", argument="candidates")
    return torch.arange(records, device=scores.device)


def _ncc_distances(candidates: Tensor, truth: Tensor) -> Tensor:
    if truth.ndim == 4 and min(truth.shape[2:]) >= 32:
        candidates, truth = half(candidates), half(truth)
    # A diverged candidate is NaN, and NaN would count as the smallest.
    return ncc_distance(candidates, truth).nan_to_num(nan=torch.inf)


def _nearest(distances: Tensor) -> Tensor:
    """The nearest candidate of each record (Buzaglo et al. 2023), which several may share; CIFAR at half resolution."""
    return distances.argmin(0) if len(distances) else _unmatched(distances)


def greedy(metric: Metric) -> Matching:
    """Greedy one-to-one matching by `metric`, as for SimuDy; ties go to the first record."""
    return Matching(name=f"greedy_{metric.name}", compare=_Likeness(metric), assign=_best_first)


@final
@dataclass(frozen=True)
class _Likeness:
    """Scores by `metric`, of which the largest is the best."""

    metric: Metric

    def __call__(self, candidates: Tensor, truth: Tensor) -> Tensor:
        score = self.metric.pairwise(candidates, truth).double() * (1 if self.metric.higher_is_better else -1)
        return score.nan_to_num(nan=-torch.inf)  # a diverged candidate is NaN


def _best_first(scores: Tensor) -> Tensor:
    """One to one, the best pair first, then the best of the remaining; SimuDy's paper does so on normalised images."""
    return torch.from_numpy(_greedy(scores.T.cpu().numpy())).to(scores.device)


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


def _ssim_costs(candidates: Tensor, truth: Tensor) -> Tensor:
    if truth.ndim == 4 and min(truth.shape[2:]) >= SKIMAGE.window:
        return -SSIM.pairwise(candidates, truth).nan_to_num(nan=-2.0)  # diverged candidates below all others
    errors = MSE.pairwise(candidates, truth)
    finite = errors[errors.isfinite()]
    worst = max(2.0, 2 * float(finite.max())) if finite.numel() else 2.0  # than any error, which in [0, 1] is 1 at most
    return errors.nan_to_num(nan=worst, posinf=worst)


def _cheapest(costs: Tensor) -> Tensor:
    """The optimal one-to-one assignment by the sum of SSIM, or of squared errors where an SSIM window does not fit."""
    from scipy.optimize import linear_sum_assignment

    candidate, record = linear_sum_assignment(costs.double().cpu().numpy())
    match = _unmatched(costs)
    match[torch.from_numpy(record).to(match.device)] = torch.from_numpy(candidate).to(match.device)
    return match


def _unmatched(scores: Tensor) -> Tensor:
    return torch.full((scores.shape[1],), NONE, dtype=torch.int64, device=scores.device)


identity = Matching(name="identity", compare=_no_scores, assign=_identity)
nearest_ncc = Matching(name="nearest_ncc", compare=_ncc_distances, assign=_nearest)
greedy_ssim = greedy(SSIM)
hungarian = Matching(name="hungarian", compare=_ssim_costs, assign=_cheapest)

MATCHINGS = (identity, nearest_ncc, greedy_ssim, hungarian)
