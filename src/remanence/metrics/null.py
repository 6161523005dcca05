"""The levels that chance reaches: what the same matching and metrics give when nothing was reconstructed.

Nulls are drawn with the labels of the truth, so that an attack which learnt a record's class and nothing else stays at
the null level.
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

NULL_SCORES = 2000  # enough to speak of 0.1 %: draws are repeated until there are as many
Values: TypeAlias = dict[str, Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Null:
    meaning: str
    values: Values


def matched(candidates: Tensor, truth: Tensor, matching: Matching, metrics: Sequence[Metric]) -> tuple[Tensor, Values]:
    """The candidate of each truth record, and the score of each such pair by every metric (NaN where there is none)."""
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
    """Null (a)."""
    draws = _draws(truth.y, unrelated, len(truth), seed)
    trials = ((candidates, unrelated.x[drawn]) for drawn in draws)
    return Null(
        meaning="the same reconstructions, scored against equally many held-out records that were never trained on",
        values=_pooled(trials, matching, metrics),
    )


def unrelated_images(
    count: int, truth: Data, unrelated: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int
) -> Null:
    """Null (b)."""
    labels = truth.y[torch.arange(count, device=truth.y.device) % len(truth)]
    draws = _draws(labels, unrelated, len(truth), seed)
    trials = ((unrelated.x[drawn], truth.x) for drawn in draws)
    return Null(
        meaning="unrelated records of the same classes, as many as there are reconstructions, in their place",
        values=_pooled(trials, matching, metrics),
    )


def noise(count: int, truth: Data, matching: Matching, metrics: Sequence[Metric], *, seed: int) -> Null:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(count, *truth.shape, generator=generator).to(truth.x)
    return Null(
        meaning="uniform noise in place of the reconstructions", values=matched(drawn, truth.x, matching, metrics)[1]
    )


def mean_image(truth: Data, known: Data, metrics: Sequence[Metric]) -> Null:
    mean = known.x.mean(dim=0).expand_as(truth.x)
    return Null(
        meaning="the mean of the records that the attacker could own, given as every reconstruction",
        values={metric.name: metric.paired(mean, truth.x) for metric in metrics},
    )


def nearest_neighbour(truth: Data, known: Data, metrics: Sequence[Metric]) -> tuple[Tensor, Null]:
    """The record nearest to each truth record among those the attacker could own, by squared error, and its scores."""
    nearest = known.x[MSE.pairwise(known.x, truth.x).argmin(dim=0)]
    meaning = "for each record its nearest neighbour (by squared error) among the records that the attacker could own"
    return nearest, Null(meaning=meaning, values={m.name: m.paired(nearest, truth.x) for m in metrics})


def _pooled(trials: Iterable[tuple[Tensor, Tensor]], matching: Matching, metrics: Sequence[Metric]) -> Values:
    """The scores of all matched pairs of all trials (candidates, truth), each metric called once."""
    ours, theirs = [], []
    for candidates, truth in trials:
        index = matching(candidates, truth)
        ours.append(candidates[index[index != NONE]])
        theirs.append(truth[index != NONE])
    return {metric.name: metric.paired(torch.cat(ours), torch.cat(theirs)) for metric in metrics}


def _draws(labels: Tensor, pool: Data, scores_each: int, seed: int) -> Iterator[Tensor]:
    """Draws from `pool` without replacement, record i of the label `labels[i]` as far as the pool has it."""
    if len(pool) < len(labels):
        raise BadInput(
            f"`unrelated` must hold at least as many records as are compared, {len(labels)}, got {len(pool)}: "
            "hold more records out"
        )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(-(-NULL_SCORES // scores_each)):
        yield _draw(labels.cpu(), pool.y.cpu(), generator).to(pool.x.device)


def _draw(labels: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(len(pool), generator=generator)
    drawn = torch.full_like(labels, -1)
    for label in labels.unique():
        places, same = (labels == label).nonzero()[:, 0], order[pool[order] == label]
        drawn[places[: len(same)]] = same[: len(places)]
    left = order[~torch.isin(order, drawn)]
    drawn[drawn < 0] = left[: int((drawn < 0).sum())]
    return drawn
