"""The theoretical limit that differential privacy sets to the success rate of any reconstruction attack.

Balle, Cherubin, Hayes 2022 and Hayes, Mahloujifar, Balle, "Bounding Training Data Reconstruction in DP-SGD" (2023): if
no guess from the prior alone comes close to a record with a probability above kappa, then no attack on a release does
so with a probability above the largest true-positive rate at the false-positive rate kappa, which for full batches
(mu-GDP) is Phi(Phi^-1(kappa) + mu). A reconstruction *succeeds* when its squared error is at most a threshold.

Three assumptions are behind kappa. The attacker may know all records but one, the training and every intermediate
model. Of the unknown record the attacker knows its distribution, of which other records here are a sample, and nothing
else: who knows more about it has a larger kappa. And kappa is estimated: guesses are selected on one half of these
records and counted on the other, and an upper confidence bound is taken, as what is measured above the limit is a bug.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.pixel import MSE
from remanence.metrics.statistics import Interval, binomial_proportion
from remanence.training.dp import DELTA
from remanence.training.guarantee import Guarantee
from remanence.types import Data, Reconstruction

ASSUMPTIONS = (
    "It holds for an attacker who knows all records but one, and of that one only what kind of record it is: what the "
    "best guess without the release reaches is estimated, from above, from other records of the kind. Who knows more "
    "about a record can reach more."
)
RATE = 0.01  # success rate of the best guess that sets the threshold where none is given
STARTS, CLIMBERS, STEPS, SHORTLIST = 2000, 64, 10, 32
MAX_RECORDS, BLOCK = 5000, 4096  # that guesses are computed from; that are compared at once
FINEST = 1 / 255**2  # one grey level: below that two records are the same
ALPHA = 0.025  # probability that kappa is underestimated: that of one bound of the interval of the success rate


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """The measured success rate of an attack and its upper bound under differential privacy."""

    mu: float | None  # of Gaussian differential privacy; None for Poisson samples
    epsilon: float
    delta: float
    metric: str
    threshold: float  # a reconstruction with at most this error succeeds
    prior: float  # kappa: success rate of the best guess from the prior alone, an upper confidence bound
    bound: float
    success: Interval  # measured

    @property
    def violated(self) -> bool:
        """Whether the measured success rate lies above the bound, which means a bug."""
        return self.success.low > self.bound


def reconstruction_limit(
    reconstruction: Reconstruction,
    truth: Data,
    known: Data,
    *,
    guarantee: Guarantee,
    delta: float = DELTA,
    threshold: float | None = None,
    seed: int = 0,
) -> Limit:
    """The success rate of `reconstruction`, whose i-th candidate is for the i-th record of `truth`, and its limit.

    `known` are other records of the same distribution: one half makes guesses, the other counts how often they succeed.
    Where no `threshold` is given it is the error within which the best guess succeeds on 1 % of the first half.
    """
    _check(reconstruction, truth, known, threshold)
    truth, known = (data.to(reconstruction.x.device, reconstruction.x.dtype) for data in (truth, known))
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).to(known.x.device)
    making, counting = known.take(order[: len(order) // 2][:MAX_RECORDS]), known.take(order[len(order) // 2 :])
    starts, returned = _starts(making), reconstruction.x.detach().flatten(1)
    threshold = threshold or _threshold(starts, making.x.flatten(1))
    # the candidates are guesses too, as good as any where the attack learnt nothing from the release
    pool = torch.cat([starts, returned[returned.isfinite().all(dim=1)]])
    kappa = _kappa(pool, making.x.flatten(1), counting.x.flatten(1), threshold)
    succeeded = MSE.paired(reconstruction.x, truth.x) <= threshold  # not so for NaN
    return Limit(
        mu=guarantee.mu,
        epsilon=guarantee.epsilon(delta),
        delta=delta,
        metric=MSE.name,
        threshold=threshold,
        prior=kappa,
        bound=guarantee.tpr(kappa),
        success=binomial_proportion(int(succeeded.sum()), len(truth)),
    )


def _starts(records: Data) -> Tensor:
    """The first guesses: records, the mean record and the mean of each class."""
    means = [records.x.mean(dim=0)] + [records.x[records.y == label].mean(dim=0) for label in records.y.unique()]
    return torch.cat([torch.stack(means), records.x[:STARTS]]).flatten(1)


def _threshold(starts: Tensor, records: Tensor) -> float:
    """The smallest error within which some guess lies of a fraction RATE of the records."""
    count = max(2, round(RATE * len(records)))  # one record is its own best guess, with no error

    def radius(errors: Tensor) -> Tensor:
        return errors.kthvalue(min(count, len(records)), dim=1).values

    def nearest(errors: Tensor) -> Tensor:
        return errors <= radius(errors)[:, None]

    first = starts[radius(_errors(starts, records)).argsort()[:CLIMBERS]]
    return max(FINEST, float(radius(_errors(_climb(first, records, nearest), records)).min()))


def _kappa(pool: Tensor, making: Tensor, counting: Tensor, threshold: float) -> float:
    """An upper confidence bound of the success rate of the best guess, which need not be among ours."""
    guesses = _best_guesses(pool, making, threshold)
    chosen, fresh = (_errors(guesses, records) <= threshold for records in (making, counting))
    return max(float(chosen.double().mean(dim=1).max()), _upper_bound(fresh))


def _best_guesses(starts: Tensor, records: Tensor, threshold: float) -> Tensor:
    """The guesses with the highest success rates, among the starts and what mean shift reaches from the best."""

    def within(errors: Tensor) -> Tensor:
        return errors <= threshold

    def best(guesses: Tensor, count: int) -> Tensor:
        succeeds = within(_errors(guesses, records)).sum(dim=1)
        return guesses[succeeds.argsort(descending=True, stable=True)[:count]]

    return best(_climb(best(starts, CLIMBERS), records, within), SHORTLIST)


def _climb(guesses: Tensor, records: Tensor, near: Callable[[Tensor], Tensor]) -> Tensor:
    """All guesses along the paths of mean shift, in which a guess moves to the mean of the records near it: a mean is a
    better guess than any record."""
    path = [guesses]
    for _ in range(STEPS):
        mask = near(_errors(path[-1], records)).to(records)
        count = mask.sum(dim=1, keepdim=True)
        path.append(torch.where(count > 0, mask @ records / count.clamp(min=1), path[-1]))
    return torch.cat(path)


def _errors(guesses: Tensor, records: Tensor) -> Tensor:
    """(guesses, records): mean squared errors by matrix products, in float64, where their rounding does not matter."""
    a, blocks = guesses.double(), (block.double() for block in records.split(BLOCK))
    norms = a.square().sum(dim=1, keepdim=True)
    squares = [torch.addmm(norms + b.square().sum(dim=1), a, b.T, alpha=-2) for b in blocks]
    return torch.cat(squares, dim=1).clamp_(min=0).div_(a.shape[1])


def _upper_bound(succeeds: Tensor) -> float:
    """The one-sided Clopper-Pearson bound for the best of (guesses, records), with a union bound over guesses."""
    from scipy.stats import binomtest

    best = binomtest(int(succeeds.sum(dim=1).max()), succeeds.shape[1], alternative="less")
    return float(best.proportion_ci(1 - ALPHA / len(succeeds), "exact").high)


def _check(reconstruction: Reconstruction, truth: Data, known: Data, threshold: float | None) -> None:
    if len(reconstruction.x) != len(truth) or not len(truth):
        message = (
            f"`reconstruction` must hold one candidate for each record of `truth`, {len(truth)}, "
            f"got {len(reconstruction.x)}: the limit is about one unknown record per release"
        )
        raise BadInput(message, code="shape-mismatch", argument="reconstruction")
    if len(known) < 2:
        message = f"`known` must hold records to guess from and others to count on, got {len(known)}: add some"
        raise BadInput(message, code="too-few", argument="known")
    if threshold is not None and not (isfinite(threshold) and threshold > 0):
        message = f"`threshold` must be a squared error above 0, got {threshold}"
        raise BadInput(message, code="out-of-range", argument="threshold")
