"""Figure 5: where weight decay puts the records relative to the boundary, and which of them come back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.diagnostics.preflight import run_preflight
from remanence.experiments import Experiment, Figure, Measure, Measurement, Outcome, Scale, Series
from remanence.metrics import SSIM
from remanence.metrics.statistics import binomial_proportion, bootstrap_statistic, rank_correlation
from remanence.progress import track
from remanence.seeds import derive_seed
from remanence_recipes.buzaglo2023.figures import PER_CLASS, decays, plain, surveyed
from remanence_recipes.weights_alone.reading import TUNED, Reading, read, said, scatter
from remanence_recipes.weights_alone.target import Target


def figure5_margins(scale: Scale) -> Sequence[Experiment]:
    """Figure 5: the margins of the records under weight decay, and whether records near the boundary come back."""
    target = surveyed(plain(scale), PER_CLASS[scale])
    about = "Victims without weight decay and with a grid of it: how far are their records from the boundary?"
    return [
        Experiment(
            label="margins",
            about=said(about, target),
            evaluations=(Measurement(measure=partial(_margins, decays(target, scale))),),
        )
    ]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Decayed:
    reading: Reading
    margins: Tensor
    on_margin: float

    @classmethod
    def of(cls, target: Target, seed: int, device: torch.device) -> "_Decayed":
        reading = read(target, seed, device)
        before = run_preflight(reading.victim)
        return cls(reading=reading, margins=before.margins.double().cpu(), on_margin=before.on_margin)


def _margins(targets: Mapping[str, Target], seed: int, device: torch.device) -> Outcome:
    made = {
        name: _Decayed.of(target, seed, device)
        for name, target in track(list(targets.items()), total=len(targets), label="weight decays")
    }
    return Outcome(
        measures=tuple(measure for name, each in made.items() for measure in _measures(name, each, seed)),
        figures=(_quantiles(made), *(_titled(name, each) for name, each in made.items())),
        caveats=(TUNED,),
    )


def _measures(name: str, each: _Decayed, seed: int) -> list[Measure]:
    margins, ssim = each.margins, each.reading.ours.scores.values[SSIM.name].double().cpu()

    def correlation(rows: Tensor) -> float:
        return rank_correlation(margins[rows], ssim[rows])

    rho = bootstrap_statistic(correlation, (len(margins),), seed=derive_seed(seed, name))
    wrong = binomial_proportion(int((margins <= 0).sum()), len(margins))
    return [
        Measure(name=f"median margin, {name}", value=float(margins.median()), meaning="of the records"),
        Measure(
            name=f"records on the margin, {name}",
            value=each.on_margin,
            meaning="share whose margin is at most 1.1 times the smallest",
        ),
        Measure.from_interval(f"records on the wrong side, {name}", wrong, meaning="share of the training records"),
        Measure.from_interval(
            f"SSIM against the margin, {name}",
            rho,
            chance=0.0,
            meaning="rank correlation over the records, Stationarity; below zero where records near the boundary come "
            "back better",
        ),
        Measure.from_interval(
            f"share found, {name}",
            each.reading.ours.scores.fraction_found,
            chance=0.01,
            meaning="of the records, by Stationarity, beyond both nulls at 1 % false positives",
        ),
    ]


def _quantiles(made: Mapping[str, _Decayed]) -> Figure:
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    return Figure(
        title="Margins of the records",
        x_label="share of the records",
        y_label="have at most this margin",
        series=tuple(
            Series(name=name, x=tuple(levels.tolist()), y=tuple(each.margins.quantile(levels).tolist()))
            for name, each in made.items()
        ),
    )


def _titled(name: str, each: _Decayed) -> Figure:
    return replace(scatter(each.margins, each.reading), title=f"SSIM against the margin, {name}")
