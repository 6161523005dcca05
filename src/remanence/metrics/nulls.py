"""Null levels: the scores that the same matching and metrics give where nothing was reconstructed.

Nulls are sampled with the labels of the truth, so that an attack which learnt a record's class and nothing else stays
at the null level.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from remanence.bounds import clamp, is_finite, sample
from remanence.errors import BadInput
from remanence.metrics.base import Metric
from remanence.metrics.leakage import Releases
from remanence.metrics.matching import NONE, Matching, identity
from remanence.types import Data

MIN_POOL = 0.1  # of the records that are compared, that must have been held out
NULL_SCORES, MAX_SAMPLES = 2000, 200  # sampling is repeated until there are enough scores for a level of 0.1 %
_SHORTLIST = 16  # neighbours by squared error, of which the metric chooses
_CLOSEST_AT_ONCE = 2**24  # distances
_AT_ONCE = 2**16  # pairs at most that are all compared once, rather than those of each sample again
Values: TypeAlias = dict[str, Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Null:
    """Null scores by metric, and what they mean."""

    meaning: str
    values: Values
    distinct: int  # different pairs among those scored
    records: Tensor | None = None  # (scores,): of the scores of held-out records, the index of each


def matched(
    candidates: Tensor, truth: Tensor, matching: Matching, metrics: Sequence[Metric], releases: Releases | None = None
) -> tuple[Tensor, Values]:
    """The index of each record's candidate, of its own release, and the scores of these pairs by every metric (NaN
    where there is none)."""
    index = _matched_within(candidates, truth, matching, releases)
    has = index != NONE
    values = {}
    for metric in metrics:
        score = truth.new_full((len(truth),), torch.nan)
        score[has] = metric.paired(candidates[index[has]], truth[has])
        values[metric.name] = score
    return index, values


def _matched_within(candidates: Tensor, truth: Tensor, matching: Matching, releases: Releases | None) -> Tensor:
    if releases is None or len(releases) == 1 or matching is identity:  # which goes by position already
        return matching(candidates, truth)
    index = torch.full((len(truth),), NONE, device=truth.device)
    for release in releases.records.unique():
        ours = (releases.candidates == release).nonzero()[:, 0].to(truth.device)
        records = (releases.records == release).nonzero()[:, 0].to(truth.device)
        found = matching(candidates[ours], truth[records])
        index[records[found != NONE]] = ours[found[found != NONE]]
    return index


def held_out(
    candidates: Tensor, truth: Data, unrelated: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int
) -> Null:
    """Null (a): the reconstructions against held-out records."""
    every = torch.arange(len(candidates), device=candidates.device)
    trials = (
        (position if matching is identity else every, sampled)
        for sampled, position in _samples(truth.y, unrelated, seed)
    )
    meaning = "the same reconstructions, scored against equally many held-out records that were never trained on"
    return _pooled(meaning, candidates, unrelated.x, trials, matching, metrics, of_records=True)


def unrelated_images(
    count: int, truth: Data, unrelated: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int
) -> Null:
    """Null (b): unrelated records against the truth."""
    labels = truth.y[torch.arange(count, device=truth.y.device) % len(truth)]
    compared = max(
        1, len(truth) * min(count, len(unrelated)) // max(1, count)
    )  # fewer where fewer can stand in for all
    trials = (
        (sampled, position if count == len(truth) else _subset(len(truth), compared, seed + i).to(sampled))
        for i, (sampled, position) in enumerate(_samples(labels, unrelated, seed))
    )
    meaning = "unrelated records of the same classes, as many as there are reconstructions, in their place"
    return _pooled(meaning, unrelated.x, truth.x, trials, matching, metrics)


def noise(count: int, truth: Data, known: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int) -> Null:
    """Noise against the truth: uniform in a finite box, otherwise normal with the mean and the standard deviation that
    each value has in the known records."""
    generator = torch.Generator().manual_seed(seed)
    if is_finite(truth.bounds):
        kind, sampled = "uniform noise", sample(count, *truth.shape, bounds=truth.bounds, generator=generator)
    else:
        kind, (std, mean) = "normal noise", torch.std_mean(known.x.cpu(), dim=0, correction=0)
        sampled = clamp(mean + std * torch.randn(count, *truth.shape, generator=generator).to(mean), truth.bounds)
    values = matched(sampled.to(truth.x), truth.x, matching, metrics)[1]
    return Null(meaning=f"{kind} in place of the reconstructions", values=values, distinct=len(truth))


def mean_image(truth: Data, known: Data, metrics: Sequence[Metric]) -> Null:
    """The mean of the known records against the truth."""
    mean = known.x.mean(dim=0).expand_as(truth.x)
    meaning = "the mean of the records that the attacker could own, given as every reconstruction"
    values = {metric.name: metric.paired(mean, truth.x) for metric in metrics}
    return Null(meaning=meaning, values=values, distinct=len(truth))


def nearest_neighbour(truth: Data, known: Data, metrics: Sequence[Metric]) -> tuple[Tensor, Null]:
    """The record nearest to each truth record among those the attacker could own, by the first metric, and its
    scores."""
    nearest = known.x[neighbours(truth.x, known.x, metrics[0])]
    meaning = f"for each record its nearest neighbour (by {metrics[0].name}) among the records the attacker could own"
    values = {metric.name: metric.paired(nearest, truth.x) for metric in metrics}
    return nearest, Null(meaning=meaning, values=values, distinct=len(truth))


def neighbours(records: Tensor, known: Tensor, metric: Metric) -> Tensor:
    """(records,): the index of the nearest of the `known` records other than itself: by `metric`, of those that are
    nearest by squared error."""
    best, index = records.new_full((len(records),), -torch.inf), records.new_zeros(len(records), dtype=torch.int64)
    closest = _closest(records, known)
    for column in closest.T:
        score = metric.paired(known[column], records)
        score = (score if metric.higher_is_better else -score).nan_to_num(nan=-torch.inf)
        same = (known[column] == records).flatten(1).all(1)
        better = ~same & (score > best)
        best, index = torch.where(better, score, best), torch.where(better, column, index)
    return index


def _closest(records: Tensor, known: Tensor) -> Tensor:
    """(records, 16 at most): the indices of the nearest by squared error."""
    a, b = records.flatten(1), known.flatten(1)
    norms = b.square().sum(1)
    rows = max(1, _CLOSEST_AT_ONCE // max(1, len(b)))
    found = [(norms - 2 * part @ b.T).topk(min(_SHORTLIST, len(b)), largest=False).indices for part in a.split(rows)]
    return torch.cat(found)


def _pooled(
    meaning: str,
    candidates: Tensor,
    truth: Tensor,
    trials: Iterable[tuple[Tensor, Tensor]],
    matching: Matching,
    metrics: Sequence[Metric],
    *,
    of_records: bool = False,
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
    distinct = len((one * len(truth) + other).unique())
    return Null(meaning=meaning, values=values, distinct=distinct, records=other if of_records else None)


def _samples(labels: Tensor, pool: Data, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices of samples from `pool` without replacement, of the labels as far as there are any, and whose label each
    has; a smaller pool is sampled for random ones of them. Other classes never stand in."""
    if len(pool) < MIN_POOL * len(labels):
        message = (
            f"`unrelated` must hold at least {MIN_POOL:.0%} as many records as are compared, {len(labels)}, got "
            f"{len(pool)}: hold more records out"
        )
        raise BadInput(message, code="too-few", argument="unrelated")
    generator, labels = torch.Generator().manual_seed(seed), labels.cpu().contiguous()
    for i in range(MAX_SAMPLES):
        position = _subset(len(labels), len(pool), seed + i)
        sampled = _sample(labels[position], pool.y.cpu(), generator)
        has = sampled != NONE
        yield sampled[has].to(pool.x.device), position[has].to(pool.x.device)


def _subset(total: int, size: int, seed: int) -> Tensor:
    """Indices of `size` random ones of `total`, in order; all of them where there are no more."""
    if size >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:size].sort().values


def _sample(labels: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    """For the k-th record of a label the k-th of `pool` with it, in a random order; -1 where there are too few."""
    order = torch.randperm(len(pool), generator=generator)
    by_label = order[pool[order].argsort(stable=True)]
    ordered = pool[by_label]
    position = torch.searchsorted(ordered, labels) + _occurrence(labels)
    has = position < torch.searchsorted(ordered, labels, right=True)
    sampled = torch.full_like(labels, NONE)
    sampled[has] = by_label[position[has]]
    return sampled


def _occurrence(labels: Tensor) -> Tensor:
    """How often the label of each record came before it."""
    ordered, order = labels.sort(stable=True)
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(labels)) - torch.searchsorted(ordered, ordered))
