"""Tests that rest on exchangeability: without a leak, private and held-out records of a class score alike.

Given the reconstructions, let S(r) be how well record r is recognised in them, for private and held-out records by the
same function, which may look at all of these records but not at which are private. Without a leak the private and the
held-out records of one class are exchangeable, so that the rank of a private record among the held-out ones is
uniform, whatever the reconstructions are; Benjamini and Hochberg's procedure on these ranks lists records at a stated
false-discovery rate (Bates et al. 2023), and a permutation within classes gives one p-value for all records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput

FDR = 0.05  # of a list, the fraction that is false
_SMALL = 20  # records of a class: smaller ones are standardised together
_FIRST, _DRAWS = 999, 19999  # permutations; the first ones suffice where they show no leak
_AT_ONCE = 2**23  # random numbers


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Scores of private and then held-out records, with what was reconstructed from each release.

    A private record belongs to one release; a held-out one to none, and is scored with all of them.
    """

    scores: Tensor  # (releases, private + held-out records): larger is better
    labels: Tensor  # (private + held-out records,): records are exchangeable within these
    release: Tensor  # (private records,): the row of each

    def __post_init__(self) -> None:
        releases, records = self.scores.shape
        if len(self.labels) != records or len(self.release) > records:
            message = f"`labels` must be as many as the {records} records of `scores`, got {len(self.labels)}"
            raise BadInput(message, code="shape-mismatch", argument="labels")
        if len(self.release) and int(self.release.max()) >= releases:
            message = f"`release` must be below {releases}, the number of rows, got {int(self.release.max())}"
            raise BadInput(message, code="out-of-range", argument="release")

    @property
    def private(self) -> int:
        """The number of private records."""
        return len(self.release)

    @property
    def private_scores(self) -> Tensor:
        """(private records,): the score of each with its own release."""
        return self.scores[self.release, torch.arange(self.private)]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RankTest:
    """The p-values of a rank test: of each private record, and of all of them together."""

    records: Tensor  # (private records,); 1 where nobody held out a record of the class
    together: float  # by permutation within classes


def competitive(scores: Tensor) -> Tensor:
    """(m, n): by how much each score of a candidate exceeds the best score that it has with any other record.

    What resembles every record is evidence of none: a blank candidate, or one of two equal records.
    """
    if scores.shape[1] < 2:
        return scores
    best, second = scores.topk(2, dim=1).values.unbind(1)
    exceeded = torch.where(scores == best[:, None], second[:, None], best[:, None])
    return scores - exceeded


def standardised(scores: Tensor, labels: Tensor, private: int) -> Tensor:
    """(releases, records): the scores, of `private` records first, less a typical one of their class, over its spread.

    Both are taken from the lower part of the class that is as large as its held-out records are many: if all private
    records leak, that part is not theirs, and they stand out. Classes of few records are taken together.
    """
    classes, index, counts = labels.unique(return_inverse=True, return_counts=True)
    merged = torch.where(counts < _SMALL, len(classes), torch.arange(len(classes)))[index]
    result = torch.empty_like(scores)
    for label in merged.unique():
        here = merged == label
        values, held_out = scores[:, here], 1 - float(here[:private].sum() / here.sum())
        low, typical = values.quantile(values.new_tensor([0.16 * held_out, 0.5 * held_out]), dim=1)
        deviation = values.std(1, correction=0)
        scale = torch.maximum(typical - low, 0.1 * deviation).clamp_min(1e-9)  # nearly all may have the same score
        result[:, here] = (values - typical[:, None]) / scale[:, None]
    return result


def rank_test(pool: Pool, *, seed: int) -> RankTest:
    """The rank test of `pool`, whose scores should be standardised by class."""
    scores = pool.private_scores.double().cpu()
    return RankTest(records=_of_records(pool, scores), together=_permutation(pool, seed))


def _of_records(pool: Pool, private_scores: Tensor) -> Tensor:
    """(private records,): the fraction of held-out records that score as well, the record itself included.

    Ranks are within the class where enough of it was held out for a list of a tenth of the records, of five, or of all
    where they are fewer. Where not, they are among all held-out records, weighted to the classes of the private ones
    (Tibshirani et al. 2019), which keeps the level on average over the classes; and no smaller than the fraction of the
    own class that scores as well, which keeps it within each as far as its few records can.
    """
    n = pool.private
    scores = pool.scores[:, n:].double().cpu()
    index = pool.labels.cpu().unique(return_inverse=True)[1]
    ours, theirs = (torch.bincount(part, minlength=int(index.max()) + 1).double() for part in (index[:n], index[n:]))
    of_class = ours / theirs.clamp_min(1)
    weight = of_class[index[n:]]
    fine = _needed(n, theirs) <= min(n, max(5, n / 10))
    p = torch.ones(n, dtype=torch.double)
    for release in pool.release.unique():
        for label in index[:n][pool.release == release].unique():
            here = ((pool.release == release) & (index[:n] == label)).nonzero()[:, 0]
            rivals = scores[release][index[n:] == label]
            if not len(rivals):
                continue
            above = _weight_above(private_scores[here], rivals, torch.ones_like(rivals))
            if fine[label]:
                p[here] = (1 + above) / (1 + len(rivals))
            else:
                of_all = _weight_above(private_scores[here], scores[release], weight)
                pooled = (of_class[label] + of_all) / (of_class[label] + weight.sum())
                p[here] = torch.maximum(pooled, above / len(rivals)).clamp_max(1)
    return p


def smallest_list(pool: Pool, fdr: float) -> int:
    """The number of private records that must leak before any can be listed: as few held-out records make p-values
    coarse. One more than there are where none can."""
    best = torch.full((pool.private,), torch.inf, dtype=torch.double)
    p = _of_records(pool, best).sort().values
    counts = torch.arange(1, len(p) + 1, dtype=torch.double)
    enough = (p <= fdr * counts / max(1, len(p)) * (1 + 1e-12)).nonzero()[:, 0]
    return int(enough[0]) + 1 if len(enough) else len(p) + 1


def smallest_p(pool: Pool) -> float:
    """The p-value of all records where each private one scores above every held-out one: no score makes it smaller."""
    choices = 1
    for surprise, rows in _strata(pool):
        left = surprise.shape[1]
        for count in rows.bincount().tolist():
            choices, left = choices * comb(left, count), left - count
    return max(1 / choices, 1 / (1 + _DRAWS))


def _needed(records: int, held_out: Tensor) -> Tensor:
    """The number of `records` that must leak before any is listed by ranks among so many `held_out` ones."""
    return (records / (FDR * (1 + held_out)) - 1e-9).ceil().clamp_min(1)


def _weight_above(scores: Tensor, null: Tensor, weight: Tensor) -> Tensor:
    """(scores,): the total weight of null scores that are at least as large as each score."""
    order = null.argsort()
    below = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)])
    return (below[-1] - below[torch.searchsorted(null[order], scores)]).clamp_min(0)


def _permutation(pool: Pool, seed: int) -> float:
    """The p-value of the sum of -log ranks of private records among all records of their class."""
    generator = torch.Generator().manual_seed(seed)
    strata = [each for each in _strata(pool) if each[0].shape[1] > len(each[1])]
    if not strata:
        return 1.0
    observed = sum(float(surprise[rows, torch.arange(len(rows))].sum()) for surprise, rows in strata)
    done, above = 0, 0
    for draws in (_FIRST, _DRAWS - _FIRST):
        sampled = sum((_sampled_sums(*each, draws, generator) for each in strata), torch.zeros(draws).double())
        above += int((sampled >= observed - 1e-9).sum())
        done += draws
        if above >= 10:
            break
    return (1 + above) / (1 + done)


def _strata(pool: Pool) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each class -log of the ranks (releases, records) of private and then held-out records, and the releases of the
    private ones as rows of it."""
    n, labels = pool.private, pool.labels
    for label in labels[:n].unique():
        here = (labels == label).nonzero()[:, 0]
        releases, rows = pool.release[here[here < n]].unique(return_inverse=True)
        scores = pool.scores[releases][:, here].double().cpu()
        below = torch.searchsorted(scores.sort(dim=1).values, scores)
        yield -((len(here) - below).double() / len(here)).log(), rows.cpu()


def _sampled_sums(surprise: Tensor, rows: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """(draws,): the sums for private records that are drawn at random from all."""
    size, count = surprise.shape[1], len(rows)
    sample, width = (_sample_few, count) if count**2 <= 2 * size else (_sample_many, size)
    block = max(1, _AT_ONCE // width)
    parts = (min(block, draws - start) for start in range(0, draws, block))
    return torch.cat([surprise[rows, sample(part, size, count, generator)].sum(1) for part in parts])


def _sample_few(draws: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """(draws, count): different indices below `size` in random order; the draws in which one comes twice, which are few
    where `count` is, are drawn again."""
    index = torch.randint(size, (draws, count), generator=generator)
    again = torch.arange(draws)
    while len(again := again[(index[again].sort(dim=1).values.diff(dim=1) == 0).any(1)]):
        index[again] = torch.randint(size, (len(again), count), generator=generator)
    return index


def _sample_many(draws: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """The same for any `count`: the positions of the largest of random numbers, which topk gives by size."""
    return torch.rand(draws, size, generator=generator).topk(count, dim=1).indices


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


@final
@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How many private records have a private one as their nearest, beside what exchangeable records would have."""

    nearest: float  # fraction of the private records
    expected: float
    p: float


def likeness(private: Tensor, held_out: Tensor, private_labels: Tensor, held_out_labels: Tensor) -> Likeness:
    """Whether private records resemble one another more than held-out ones of their class, by nearest neighbours
    (Schilling 1986; Henze 1988). Neighbours are mutual, so that p is rough: only very small values say something."""
    from scipy.stats import binom

    count, total, expected = 0, 0, 0.0
    for label in private_labels.unique():
        ours, theirs = private[private_labels == label].flatten(1), held_out[held_out_labels == label].flatten(1)
        n, m = len(ours), len(theirs)
        if n < 2 or not m:
            continue
        pool = torch.cat([ours, theirs])
        distance = pool.square().sum(1) - 2 * ours @ pool.T
        distance[torch.arange(n), torch.arange(n)] = torch.inf
        count += int((distance.argmin(1) < n).sum())
        total, expected = total + n, expected + n * (n - 1) / (n + m - 1)
    if not total:
        return Likeness(nearest=0.0, expected=0.0, p=1.0)
    p = float(binom.sf(count - 1, total, expected / total))
    return Likeness(nearest=count / total, expected=expected / total, p=p)


def discoveries(p: Tensor, fdr: float) -> Tensor:
    """Which hypotheses are rejected at a false-discovery rate (Benjamini and Hochberg 1995)."""
    from scipy.stats import false_discovery_control

    if not len(p):
        return torch.zeros(0, dtype=torch.bool)
    return torch.from_numpy(false_discovery_control(p.double().cpu().numpy()) <= fdr * (1 + 1e-12))
