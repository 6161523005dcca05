"""Figure 7: what SSIM 0.4 looks like, and how often an unrelated image reaches it.

The paper counts a training image as reconstructed where its nearest candidate is above 0.4. Before the first line of
this package 1,000 unrelated images of CIFAR-10 put 18 of 500 training images above it, 2,000 about 32, 4,000 about 38.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.diagnostics.preflight import run_preflight
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import SSIM3, nearest_ncc
from remanence.metrics.evaluation import FPR
from remanence.metrics.nulls import matched
from remanence.metrics.statistics import binomial_proportion
from remanence_recipes.buzaglo2023.figures import in_words, plain
from remanence_recipes.weights_alone.reading import GOOD, ROW, TUNED, Reading, read, said, scatter, unrelated
from remanence_recipes.weights_alone.target import Target

TIMES = (1, 2, 4, 8)  # as many unrelated images as records
LEVELS = tuple(level / 20 for level in range(21))
UNRELATED = "unrelated images"


def figure7_threshold(scale: Scale) -> Sequence[Experiment]:
    """Figure 7: pairs around SSIM 0.4, reconstructed and look-alike, and how often unrelated images reach it."""
    target = plain(scale)
    return [
        Experiment(
            label="around SSIM 0.4",
            about=said(in_words(target), target),
            evaluations=(Measurement(measure=partial(_around, target)),),
        )
    ]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Paired:
    """Each record with its nearest candidate, as published."""

    candidates: Tensor
    ssim: Tensor

    @classmethod
    def of(cls, candidates: Tensor, truth: Tensor) -> "_Paired":
        index, values = matched(candidates, truth, nearest_ncc, (SSIM3,))
        return cls(candidates=candidates[index], ssim=values[SSIM3.name])

    @property
    def above(self) -> int:
        return int((self.ssim > GOOD).sum())


def _around(target: Target, seed: int, device: torch.device) -> Outcome:
    reading = read(target, seed, device)
    truth, before = reading.private.x, run_preflight(reading.victim)
    pairs = {name: _Paired.of(each.found.x, truth) for name, each in reading.attacked.items()}
    counts = [times * len(truth) for times in TIMES if times * len(truth) <= len(reading.held_out)]
    lookalikes = {
        count: [_Paired.of(drawn, truth) for drawn in unrelated(reading.held_out, count, seed)] for count in counts
    }
    as_many = lookalikes[counts[0]][0]
    return Outcome(
        measures=(*_of_attacks(reading, pairs), *_of_lookalikes(lookalikes, len(truth))),
        figures=(_levels(pairs | {UNRELATED: as_many}), _growing(lookalikes), scatter(before.margins, reading)),
        pictures=_pictures(truth, pairs | {UNRELATED: as_many}),
        caveats=(*before.caveats(), TUNED),
    )


def _of_attacks(reading: Reading, pairs: Mapping[str, _Paired]) -> Iterator[Measure]:
    for name, pair in pairs.items():
        attacked = reading.attacked[name]
        yield Measure.from_interval(
            f"above 0.4, {name}",
            binomial_proportion(pair.above, len(pair.ssim)),
            chance=attacked.good_by_chance / len(pair.ssim),
            meaning="share of the records whose nearest candidate reaches it; chance: as many unrelated images",
        )
        if pair.above:
            yield Measure.from_interval(
                f"found, of those above 0.4, {name}",
                binomial_proportion(int((attacked.scores.found & (pair.ssim > GOOD)).sum()), pair.above),
                chance=FPR,
                meaning="share of them that is beyond both nulls at 1 % false positives, one to one",
            )


def _of_lookalikes(lookalikes: Mapping[int, Sequence[_Paired]], records: int) -> Iterator[Measure]:
    for count, draws in lookalikes.items():
        yield Measure.from_interval(
            f"above 0.4, {count} unrelated images",
            binomial_proportion(sum(draw.above for draw in draws), records * len(draws)),
            meaning="share of the records whose nearest unrelated image reaches it: what chance reaches",
        )


def _levels(pairs: Mapping[str, _Paired]) -> Figure:
    return Figure(
        title="Records above each SSIM",
        x_label="SSIM, window 3, of the nearest candidate",
        y_label="share of the records above",
        series=tuple(
            Series(
                name=name,
                x=LEVELS,
                y=tuple(float((pair.ssim > level).double().mean()) for level in LEVELS),
                role="chance" if name == UNRELATED else "ours",
            )
            for name, pair in pairs.items()
        ),
    )


def _growing(lookalikes: Mapping[int, Sequence[_Paired]]) -> Figure:
    found = [
        binomial_proportion(sum(d.above for d in draws), sum(len(d.ssim) for d in draws))
        for draws in lookalikes.values()
    ]
    return Figure(
        title="Above 0.4 by chance",
        x_label=UNRELATED,
        y_label="share of the records above 0.4",
        series=(Series.from_intervals("nearest unrelated image", tuple(map(float, lookalikes)), found),),
        log_x=True,
    )


def _pictures(truth: Tensor, pairs: Mapping[str, _Paired]) -> dict[str, Tensor]:
    """Of each kind the pairs nearest to 0.4, from below to above."""
    rows: dict[str, Tensor] = {}
    for name, pair in pairs.items():
        nearest = (pair.ssim - GOOD).abs().argsort()[:ROW]
        order = nearest[pair.ssim[nearest].argsort()]
        low, high = pair.ssim[order[[0, -1]]].tolist()
        rows[f"truth, {name} at {low:.2f} to {high:.2f}"] = truth[order]
        rows[name] = pair.candidates[order]
    return rows
