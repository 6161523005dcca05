"""Null levels: the scores that the same matching and metrics give where nothing was reconstructed.

Nulls are sampled with the labels of the truth, so that an attack which learnt a record's class and nothing else stays
at the null level.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.metrics.base import Metric
from remanence.metrics.matching import NONE, Matching
from remanence.metrics.pixel import MSE
from remanence.types import Data

MIN_POOL = 0.1  # of the records that are compared, that must have been held out
NULL_SCORES, MAX_SAMPLES = 2000, 200  # sampling is repeated until there are enough scores for a level of 0.1 %
_AT_ONCE = 2**16  # pairs at most that are all compared once, rather than those of each sample again
Values: TypeAlias = dict[str, Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Null:
    """Null scores by metric, and what they mean."""

    meaning: str
    values: Values
    distinct: int  # different pairs among those scored, which bound the p-values


def matched(candidates: Tensor, truth: Tensor, matching: Matching, metrics: Sequence[Metric]) -> tuple[Tensor, Values]:
    """The index of each record's candidate, and the scores of these pairs by every metric (NaN where there is none)."""
    index = matching(candidates, truth)
    has = index != NONE
    values = {}
    for metric in metrics:
        score = truth.new_full((len(truth),), torch.nan)
        score[has] = metric.paired(candidates[index[has]], truth[has])
        values[metric.name] = score
    return index, values


def held_out(
    candidates: Tensor, truth: Data, unrelated: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int
) -> Null:
    """Null (a): the reconstructions against held-out records."""
    every = torch.arange(len(candidates), device=candidates.device)
    trials = ((every, sampled) for sampled in _samples(truth.y, unrelated, seed))
    meaning = "the same reconstructions, scored against equally many held-out records that were never trained on"
    return _pooled(meaning, candidates, unrelated.x, trials, matching, metrics)


def unrelated_images(
    count: int, truth: Data, unrelated: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int
) -> Null:
    """Null (b): unrelated records against the truth."""
    labels = truth.y[torch.arange(count, device=truth.y.device) % len(truth)]
    compared = max(
        1, len(truth) * min(count, len(unrelated)) // max(1, count)
    )  # fewer where fewer can stand in for all
    trials = (
        (sampled, _subset(len(truth), compared, seed + i).to(sampled))
        for i, sampled in enumerate(_samples(labels, unrelated, seed))
    )
    meaning = "unrelated records of the same classes, as many as there are reconstructions, in their place"
    return _pooled(meaning, unrelated.x, truth.x, trials, matching, metrics)


def noise(count: int, truth: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int) -> Null:
    """Uniform noise against the truth."""
    generator = torch.Generator().manual_seed(seed)
    sampled = torch.rand(count, *truth.shape, generator=generator).to(truth.x)
    values = matched(sampled, truth.x, matching, metrics)[1]
    return Null(meaning="uniform noise in place of the reconstructions", values=values, distinct=len(truth))


def mean_image(truth: Data, known: Data, metrics: Sequence[Metric]) -> Null:
    """The mean of the known records against the truth."""
    mean = known.x.mean(dim=0).expand_as(truth.x)
    meaning = "the mean of the records that the attacker could own, given as every reconstruction"
    values = {metric.name: metric.paired(mean, truth.x) for metric in metrics}
    return Null(meaning=meaning, values=values, distinct=len(truth))


def nearest_neighbour(truth: Data, known: Data, metrics: Sequence[Metric]) -> tuple[Tensor, Null]:
    """The record nearest to each truth record among those the attacker could own, by squared error, and its scores."""
    nearest = known.x[MSE.pairwise(known.x, truth.x).argmin(dim=0)]
    meaning = "for each record its nearest neighbour (by squared error) among the records that the attacker could own"
    values = {metric.name: metric.paired(nearest, truth.x) for metric in metrics}
    return nearest, Null(meaning=meaning, values=values, distinct=len(truth))


def _pooled(
    meaning: str,
    candidates: Tensor,
    truth: Tensor,
    trials: Iterable[tuple[Tensor, Tensor]],
    matching: Matching,
    metrics: Sequence[Metric],
) -> Null:
    """The scores of the matched pairs of all trials, each of which is indices into `candidates` and into `truth`."""
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    scores = matching.scores(candidates, truth) if len(candidates) * len(truth) <= _AT_ONCE else None
    for left, right in trials:
        some = matching.scores(candidates[left], truth[right]) if scores is None else scores[left][:, right]
        index = matching.assign(some)
        ours.append(left[index[index != NONE]])
        theirs.append(right[index != NONE])
        if sum(map(len, ours)) >= NULL_SCORES:
            break
    one, other = torch.cat(ours), torch.cat(theirs)
    values = {metric.name: metric.paired(candidates[one], truth[other]) for metric in metrics}
    return Null(meaning=meaning, values=values, distinct=len((one * len(truth) + other).unique()))


def _samples(labels: Tensor, pool: Data, seed: int) -> Iterator[Tensor]:
    """Indices of samples from `pool` without replacement, record i of the label `labels[i]` as far as there are any; a
    smaller pool is sampled whole, with the labels of random records."""
    if len(pool) < MIN_POOL * len(labels):
        message = (
            f"`unrelated` must hold at least {MIN_POOL:.0%} as many records as are compared, {len(labels)}, got "
            f"{len(pool)}: hold more records out"
        )
        raise BadInput(message, code="too-few", argument="unrelated")
    generator, labels = torch.Generator().manual_seed(seed), labels.cpu().contiguous()
    for i in range(MAX_SAMPLES):
        some = labels[_subset(len(labels), len(pool), seed + i)] if len(pool) < len(labels) else labels
        yield _sample(some, pool.y.cpu(), generator).to(pool.x.device)


def _subset(total: int, size: int, seed: int) -> Tensor:
    """Indices of `size` random ones of `total`, in order; all of them where there are no more."""
    if size >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:size].sort().values


def _sample(labels: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    """For the k-th record of a label the k-th of `pool` with it, in a random order; others where there are too few."""
    order = torch.randperm(len(pool), generator=generator)
    by_label = order[pool[order].argsort(stable=True)]
    ordered = pool[by_label]
    position = torch.searchsorted(ordered, labels) + _occurrence(labels)
    has = position < torch.searchsorted(ordered, labels, right=True)
    sampled = torch.full_like(labels, -1)
    sampled[has] = by_label[position[has]]
    if not has.all():
        remaining = order[~torch.isin(order, sampled)]
        sampled[~has] = remaining[: int((~has).sum())]
    return sampled


def _occurrence(labels: Tensor) -> Tensor:
    """How often the label of each record came before it."""
    ordered, order = labels.sort(stable=True)
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(labels)) - torch.searchsorted(ordered, ordered))
