"""The theoretical limit: how often differential privacy lets any attack succeed.

Balle, Cherubin, Hayes 2022 and Hayes, Mahloujifar, Balle, "Bounding Training Data Reconstruction in DP-SGD" (2023): if
no guess from the prior alone comes close to a record with a probability above kappa, then no attack on a mu-GDP release
does so with a probability above Phi(Phi^-1(kappa) + mu). A reconstruction *succeeds* when its squared error is at most
a threshold. What is measured above the limit is a bug, so kappa is estimated from above.
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
from remanence.training.dp import DELTA, epsilon
from remanence.types import Data, Reconstruction

RATE = 0.01  # how often the best guess may succeed where no threshold is given
STARTS, CLIMBERS, STEPS, SHORTLIST = 2000, 64, 10, 32
MOST, BLOCK = 5000, 4096  # records that guesses are made from; records compared at once
FINEST = 1 / 255**2  # one grey level: below that two records are the same
DOUBT = 0.025  # how often kappa may come out too small: the doubt of one end of the interval of the success


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    mu: float
    epsilon: float
    delta: float
    metric: str
    threshold: float  # a reconstruction with at most this error succeeds
    prior: float  # kappa: how often the best guess from the prior alone succeeds, estimated from above
    bound: float
    success: Interval  # measured

    @property
    def violated(self) -> bool:
        return self.success.low > self.bound


def reconstruction_limit(
    reconstruction: Reconstruction,
    truth: Data,
    known: Data,
    *,
    mu: float,
    delta: float = DELTA,
    threshold: float | None = None,
    seed: int = 0,
) -> Limit:
    """The measured success of `reconstruction`, the i-th for the i-th record of `truth`, beside its limit.

    `known` are other records of the same distribution: one half makes guesses, the other counts how often they succeed.
    Where no `threshold` is given it is the error within which the best guess succeeds on 1 % of the first half.
    """
    _check(reconstruction, truth, known, mu, threshold)
    truth, known = (data.to(reconstruction.x.device, reconstruction.x.dtype) for data in (truth, known))
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).to(known.x.device)
    making, counting = known.take(order[: len(order) // 2][:MOST]), known.take(order[len(order) // 2 :])
    starts, own = _starts(making), reconstruction.x.detach().flatten(1)
    threshold = threshold or _threshold(starts, making.x.flatten(1))
    # what the attack returned are guesses too, as good as any where it learnt nothing from the release
    pool = torch.cat([starts, own[own.isfinite().all(dim=1)]])
    kappa = _kappa(pool, making.x.flatten(1), counting.x.flatten(1), threshold)
    succeeded = MSE.paired(reconstruction.x, truth.x) <= threshold  # not so for NaN
    return Limit(
        mu=mu,
        epsilon=epsilon(mu, delta),
        delta=delta,
        metric=MSE.name,
        threshold=threshold,
        prior=kappa,
        bound=success_bound(kappa, mu),
        success=binomial_proportion(int(succeeded.sum()), len(truth)),
    )


def success_bound(kappa: float, mu: float) -> float:
    """The largest power of a test at level `kappa` between two neighbours under mu-GDP."""
    from scipy.special import ndtr, ndtri

    if not 0 <= kappa <= 1:
        raise BadInput(f"`kappa` must be a probability from 0 to 1, got {kappa}")
    return float(ndtr(ndtri(kappa) + mu))


def _starts(records: Data) -> Tensor:
    """The first guesses: records, the mean record and the mean of each class."""
    means = [records.x.mean(dim=0)] + [records.x[records.y == label].mean(dim=0) for label in records.y.unique()]
    return torch.cat([torch.stack(means), records.x[:STARTS]]).flatten(1)


def _threshold(starts: Tensor, records: Tensor) -> float:
    """The smallest error within which some guess has RATE of the records."""
    count = max(2, round(RATE * len(records)))  # one record is its own best guess, without an error

    def radius(errors: Tensor) -> Tensor:
        return errors.kthvalue(min(count, len(records)), dim=1).values

    def nearest(errors: Tensor) -> Tensor:
        return errors <= radius(errors)[:, None]

    first = starts[radius(_errors(starts, records)).argsort()[:CLIMBERS]]
    return max(FINEST, float(radius(_errors(_climb(first, records, nearest), records)).min()))


def _kappa(pool: Tensor, making: Tensor, counting: Tensor, threshold: float) -> float:
    """How often the best guess succeeds, estimated from above: it need not be among ours."""
    guesses = _best_guesses(pool, making, threshold)
    chosen, fresh = (_errors(guesses, records) <= threshold for records in (making, counting))
    return max(float(chosen.double().mean(dim=1).max()), _largest_share(fresh))


def _best_guesses(starts: Tensor, records: Tensor, threshold: float) -> Tensor:
    """The guesses that succeed on most records: of the starts, and of what is reached from the best of them."""

    def within(errors: Tensor) -> Tensor:
        return errors <= threshold

    def best(guesses: Tensor, count: int) -> Tensor:
        succeeds = within(_errors(guesses, records)).sum(dim=1)
        return guesses[succeeds.argsort(descending=True, stable=True)[:count]]

    return best(_climb(best(starts, CLIMBERS), records, within), SHORTLIST)


def _climb(guesses: Tensor, records: Tensor, near: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean shift: each guess moves to the mean of the records near it. A mean is a better guess than any record.

    All guesses on the way are returned, the first ones included.
    """
    path = [guesses]
    for _ in range(STEPS):
        mask = near(_errors(path[-1], records)).to(records)
        count = mask.sum(dim=1, keepdim=True)
        path.append(torch.where(count > 0, mask @ records / count.clamp(min=1), path[-1]))
    return torch.cat(path)


def _errors(guesses: Tensor, records: Tensor) -> Tensor:
    """Mean squared errors (guess, record) by matrix products: in double precision their rounding is no matter here."""
    a, blocks = guesses.double(), (block.double() for block in records.split(BLOCK))
    own = a.square().sum(dim=1, keepdim=True)
    squares = [torch.addmm(own + b.square().sum(dim=1), a, b.T, alpha=-2) for b in blocks]
    return torch.cat(squares, dim=1).clamp_(min=0).div_(a.shape[1])


def _largest_share(succeeds: Tensor) -> float:
    """The upper end of the exact interval for the best of the guesses (guess, record), with a union bound over them."""
    from scipy.stats import beta

    count, total = int(succeeds.sum(dim=1).max()), succeeds.shape[1]
    return float(beta.isf(DOUBT / len(succeeds), count + 1, total - count)) if count < total else 1.0


def _check(reconstruction: Reconstruction, truth: Data, known: Data, mu: float, threshold: float | None) -> None:
    if len(reconstruction.x) != len(truth) or not len(truth):
        raise BadInput(
            f"`reconstruction` must hold one candidate for each record of `truth`, {len(truth)}, "
            f"got {len(reconstruction.x)}: the limit is about one unknown record per release"
        )
    if len(known) < 2:
        raise BadInput(f"`known` must hold records to guess from and others to count on, got {len(known)}: add some")
    if not (isfinite(mu) and mu > 0):
        raise BadInput(f"`mu` must be a finite number above 0, got {mu}: without noise there is no limit")
    if threshold is not None and not (isfinite(threshold) and threshold > 0):
        raise BadInput(f"`threshold` must be a squared error above 0, got {threshold}")
