"""An exact test of a leak: without one, private and held-out records of a class score alike.

Given the reconstructions, a record's score is that of its nearest reconstruction. If nothing leaked, the private and
held-out records of one class are exchangeable, so the rank of a private record among them is uniform, whatever the
reconstructions are; a permutation of private and held-out records within classes gives one p-value for all.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.metrics.base import Metric
from remanence.metrics.evaluation import oriented
from remanence.metrics.pixel import MSE
from remanence.types import Data

FDR = 0.05  # of a list of discoveries, the fraction that is false
_EXACT = 1e-3  # of the squared distance to the nearest held-out record
_PAIRS = 200_000  # scored at once


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RankTest:
    """The p-values of a rank test: of each private record, and of all of them together."""

    records: Tensor  # (private records,): ranks among the held-out records of the class
    together: float  # by permutation within classes


def nearest_scores(candidates: Tensor, records: Tensor, metric: Metric) -> Tensor:
    """(records,): the score of each record's nearest candidate, larger is better."""
    if not len(candidates) or not len(records):
        return records.new_full((len(records),), -torch.inf)
    rows = max(1, _PAIRS // len(candidates))
    chunks = [oriented(metric, metric.pairwise(candidates, chunk)).amax(dim=0) for chunk in records.split(rows)]
    return torch.cat(chunks)


def rank_test(
    private: Tensor,
    held_out: Tensor,
    private_labels: Tensor,
    held_out_labels: Tensor,
    *,
    seed: int,
    draws: int = 19999,
) -> RankTest:
    """Test scores of `private` records against those of `held_out` ones, larger being better, class by class.

    The statistic of all records is the sum of -log of their ranks among private and held-out records; records of a
    class that nobody held out have p = 1.
    """
    private, held_out = private.nan_to_num(nan=-torch.inf), held_out.nan_to_num(nan=torch.inf)  # to the safe side
    generator = torch.Generator().manual_seed(seed)
    each = torch.ones(len(private), dtype=torch.double)
    observed, sampled = 0.0, torch.zeros(draws, dtype=torch.double)
    for label in private_labels.unique():
        here = private_labels == label
        ours, theirs = private[here].double().cpu(), held_out[held_out_labels == label].double().cpu()
        if not len(theirs):
            continue
        each[here.cpu()] = (1 + (theirs[None] >= ours[:, None]).sum(1)).double() / (1 + len(theirs))
        pooled = torch.cat([ours, theirs])
        surprise = -(pooled[None] >= pooled[:, None]).double().mean(1).log()
        observed += float(surprise[: len(ours)].sum())
        order = torch.rand(draws, len(pooled), generator=generator).topk(len(ours), dim=1).indices
        sampled += surprise[order].sum(1)
    together = float((1 + (sampled >= observed - 1e-9).sum()) / (1 + draws))
    return RankTest(records=each, together=together)


def rank_sum_test(private: Tensor, held_out: Tensor, private_labels: Tensor, held_out_labels: Tensor) -> float:
    """The p-value that `private` scores are no larger than `held_out` ones of their class, by van Elteren's (1960)
    rank-sum test stratified by class, with one class that of Mann and Whitney; normal approximation, ties corrected.

    Few records give bounded rank sums, for which the normal tail is too large rather than too small.
    """
    from scipy.stats import norm, rankdata

    excess, variance, step = 0.0, 0.0, torch.inf
    for label in private_labels.unique():
        ours, theirs = private[private_labels == label].double(), held_out[held_out_labels == label].double()
        n, m, total = len(ours), len(theirs), len(ours) + len(theirs)
        if not m:
            continue
        ranks = torch.from_numpy(rankdata(torch.cat([ours, theirs]).cpu().numpy()))
        weight = 1 / (total + 1)
        excess += weight * (float(ranks[:n].sum()) - n * (total + 1) / 2)
        ties = ranks.unique(return_counts=True)[1].double()
        correction = float((ties**3 - ties).sum()) / (total * (total - 1))
        variance += weight**2 * n * m / 12 * (total + 1 - correction)
        step = min(step, weight / 2)
    if variance <= 0:
        return 1.0
    return float(norm.sf((excess - step) / variance**0.5))


def leak_test(candidates: Tensor, truth: Data, held_out: Data, metric: Metric, *, seed: int) -> RankTest:
    """The rank test of reconstructions `candidates` of the records `truth`, against records that were held out."""
    ours, theirs = (nearest_scores(candidates, data.x.to(candidates), metric) for data in (truth, held_out))
    return rank_test(ours, theirs, truth.y, held_out.y, seed=seed)


def discoveries(p: Tensor, fdr: float) -> Tensor:
    """Which hypotheses are rejected at a false-discovery rate (Benjamini and Hochberg 1995)."""
    order = p.argsort()
    below = p[order] <= fdr * torch.arange(1, len(p) + 1, dtype=p.dtype) / len(p)
    count = int(below.nonzero().max()) + 1 if bool(below.any()) else 0
    rejected = torch.zeros(len(p), dtype=torch.bool)
    rejected[order[:count]] = True
    return rejected


def exact_copies(candidates: Tensor, truth: Data, held_out: Data) -> Tensor:
    """(records,): whether a candidate is a thousand times nearer, by squared error, than any held-out record is.

    A candidate that has one value throughout, which a search that went nowhere may return, is a copy of nothing; where
    held-out records are copied likewise, as in tables of few different rows, copies are no evidence.
    """
    flat = candidates.flatten(1)
    candidates = candidates[flat.amax(1) > flat.amin(1)] if flat.shape[1] > 1 and len(flat) else candidates
    private, others = truth.x.to(candidates), held_out.x.to(candidates)
    copied = _copied(candidates, private, others)
    return copied & ~_copied(candidates, others, private).any()


def _copied(candidates: Tensor, records: Tensor, others: Tensor) -> Tensor:
    """(records,): whether a candidate is a thousand times nearer than any of the `others`."""
    ours, theirs = (-nearest_scores(x, records, MSE) for x in (candidates, others))
    return ours < _EXACT * theirs
