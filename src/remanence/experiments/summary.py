"""From a completed experiment to its result, the rows of `scores.csv` and its pictures."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from remanence.bounds import UNIT, Bounds, is_finite, width
from remanence.experiments import results
from remanence.experiments.claim import Claim
from remanence.experiments.experiment import Completed
from remanence.experiments.finding import Finding
from remanence.experiments.folder import Row
from remanence.experiments.outcome import Figure, Measure, Series, quantities_of
from remanence.experiments.provenance import commit, hardware
from remanence.metrics import Metric, Null, Scores
from remanence.metrics.evaluation import FPR
from remanence.metrics.identification import Identification
from remanence.metrics.leakage import LeakTest
from remanence.types import Data

BINS = 30


def result_of(completed: Completed, *, recipe: str, scale: str, seed: int, command: str) -> results.Result:
    """What is written to `results.json` about one experiment."""
    experiment, outcome = completed.experiment, completed.outcome
    refused = completed.refusal is not None
    measured = {} if refused else {name: number(value) for name, value in quantities_of(outcome).items()}
    return results.Result(
        schema=results.SCHEMA,
        recipe=recipe,
        label=experiment.label,
        about=experiment.about,
        scale=scale,
        seed=seed,
        command=command,
        commit=commit(),
        hardware=hardware(completed.device),
        seconds=round(completed.seconds, 3),
        repeats=experiment.repeats,
        budget=experiment.budget,
        point=experiment.point,
        refusal=completed.refusal,
        attack=None if outcome.finding is None else _attack(outcome.finding),
        verdict=outcome.verdict,
        measures=tuple(_measure(measure) for measure in outcome.measures),
        figures=tuple(_figure(figure) for figure in outcome.figures),
        claims=() if refused else tuple(_claim(claim, measured, scale) for claim in experiment.claims),
        caveats=outcome.caveats,
    )


def rows(completed: Completed) -> list[Row]:
    """One row per withheld record, in the order of the truth; only an attack has any."""
    if (finding := completed.outcome.finding) is None:
        return []
    scores, truth = finding.scores, finding.truth
    p = scores.test.of_records
    return [
        {
            "experiment": completed.experiment.label,
            "record": str(i),
            "label": str(int(truth.y[i])),
            "matching": scores.matching,
            "candidate": str(int(scores.index[i])) if scores.index[i] >= 0 else "",
            "found": "yes" if scores.found[i] else "no",
            "closer": "yes" if scores.closer[i] else "no",
            "p": f"{float(p[i]):.4g}",
            "exact": "yes" if scores.test.copies[i] else "no",
            "recognised_by": scores.test.recognised_by(i),
            "rank": str(int(scores.test.identification.rank[i])),
            **{name: f"{float(v[i]):.6g}" if isfinite(v[i]) else "" for name, v in scores.values.items()},
        }
        for i in range(len(truth))
    ]


def images(completed: Completed) -> dict[str, Tensor]:
    """The pictures of an experiment: of an attack the truth, the matched reconstruction and the look-alike of each
    record, black where a record got no reconstruction; then those that evaluations made."""
    pictures = dict(completed.outcome.pictures)
    if (finding := completed.outcome.finding) is not None:
        scores, truth, found = finding.scores, finding.truth.x, finding.reconstruction.x
        matched = scores.matched(found.nan_to_num(0)).to(truth)
        pictures |= {"truth": truth, "reconstruction": matched, "lookalike": scores.lookalike}
        box = black_and_white(finding.truth)
        pictures |= {name: as_pixels(pictures[name], box) for name in ("truth", "reconstruction", "lookalike")}
    return {name: x if x.dtype == torch.uint8 else as_pixels(x) for name, x in pictures.items()}


def black_and_white(data: Data) -> Bounds:
    """What is shown black and white of records: the sides of their box, or where it has none their extremes."""
    if is_finite(data.bounds) or not len(data):
        return data.bounds if is_finite(data.bounds) else UNIT
    low, high = (float(each) for each in torch.aminmax(data.x))
    return (low, high) if low < high else (low, low + 1.0)


def arrays(completed: Completed) -> dict[str, Tensor]:
    """What the tests of an experiment can be computed from again: of its finding, then those that evaluations kept."""
    finding = completed.outcome.finding
    return (finding.scores.test.arrays() if finding is not None else {}) | dict(completed.outcome.arrays)


def as_pixels(x: Tensor, bounds: Bounds = UNIT) -> Tensor:
    """Images as 8-bit ones, black and white being the sides of a finite box; rows of a table as they are."""
    if x.ndim == 4 and bounds != UNIT:
        x = (x - bounds[0]) / width(bounds)
    return (x.clamp(0, 1) * 255).round().to(torch.uint8).cpu() if x.ndim == 4 else x.float().cpu()


def number(value: float | None) -> float | None:
    """A value to six digits; None where it is not finite."""
    return float(f"{value:.6g}") if value is not None and isfinite(value) else None


def _measure(measure: Measure) -> Measure:
    low, high, chance = (number(v) for v in (measure.low, measure.high, measure.chance))
    return replace(measure, value=number(measure.value), low=low, high=high, chance=chance)


def _figure(figure: Figure) -> Figure:
    return replace(figure, series=tuple(_series(series) for series in figure.series))


def _series(series: Series) -> Series:
    def rounded(values: Sequence[float | None] | None) -> tuple[float | None, ...] | None:
        return None if values is None else tuple(number(value) for value in values)

    return replace(series, y=rounded(series.y) or (), low=rounded(series.low), high=rounded(series.high))


def _claim(claim: Claim, values: dict[str, float | None], scale: str) -> results.ClaimCheck:
    measured = {name.casefold(): value for name, value in values.items()}[claim.quantity.casefold()]
    comparable = measured if scale == "full" else None
    return results.ClaimCheck(
        quantity=claim.quantity,
        where=claim.where,
        printed=claim.printed,
        target=claim.target,
        measured=measured,
        holds=None if comparable is None else claim.holds(comparable),
        reached=None if comparable is None else claim.reached(comparable),
    )


def _attack(finding: Finding) -> results.AttackSummary:
    null: Callable[[str], results.NullSummary] = lambda name: _null(finding.scores.nulls[name], finding.scores.metrics)  # noqa: E731
    return results.AttackSummary(
        call=repr(finding.attack),
        release=_release(finding),
        matching=finding.scores.matching,
        scores=_scores(finding.scores, finding.reconstruction.objective),
        nulls=results.Nulls(**{field.name: null(field.name) for field in fields(results.Nulls)}),
        limit=finding.limit,
    )


def _scores(scores: Scores, objective: float | None) -> results.ScoreSummary:
    def rounded(rates: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(float(f"{v:.4g}") for v in rates)

    roc = scores.test.roc
    return results.ScoreSummary(
        records=len(scores.index),
        candidates=scores.candidates,
        unmatched=scores.unmatched,
        primary=scores.primary.name,
        objective=number(objective),
        metrics={metric.name: _metric(metric, scores) for metric in scores.metrics},
        found=results.Counted(count=int(scores.found.sum()), fraction=scores.fraction_found),
        test=_test(scores.test),
        identification=_identification(scores.test.identification),
        closer=results.Closer(
            count=int(scores.closer.sum()), fraction=scores.fraction_closer, chance=number(scores.chance_closer)
        ),
        labels=scores.labels,
        roc=replace(roc, fpr=rounded(roc.fpr), tpr=rounded(roc.tpr)),
        histogram=_histogram(scores),
    )


def _test(test: LeakTest) -> results.TestSummary:
    found = [test.recognised_by(int(record)) for record in test.found.nonzero()[:, 0]]
    return results.TestSummary(
        fdr=test.fdr,
        p=test.together,
        false=test.false,
        copies=int(test.copies.sum()),
        held_out=test.held_out,
        smallest_list=test.smallest_list,
        untested=test.untested,
        by=dict(Counter(found)),
        subjects=None if test.subjects is None else test.subjects.private,
    )


def _identification(found: Identification) -> results.IdentificationSummary:
    return results.IdentificationSummary(
        held_out=found.held_out,
        median=found.median,
        chance_median=number(found.chance_median),
        top1=found.top1,
        chance_top1=number(found.chance_top1),
        top5=found.top5,
        chance_top5=number(found.chance_top5),
    )


def _metric(metric: Metric, scores: Scores) -> results.MetricSummary:
    mean = scores.means[metric.name]
    p10, median, p90 = _quantiles(scores.values[metric.name], (0.1, 0.5, 0.9))
    return results.MetricSummary(
        mean=number(mean.value),
        low=number(mean.low),
        high=number(mean.high),
        median=median,
        p10=p10,
        p90=p90,
        good=metric.good,
        higher_is_better=metric.higher_is_better,
    )


def _null(null: Null, metrics: tuple[Metric, ...]) -> results.NullSummary:
    def level(metric: Metric) -> results.NullLevel:
        values, at = null.values[metric.name], 1 - FPR if metric.higher_is_better else FPR
        return results.NullLevel(mean=number(float(values.nanmean())), at_1_percent=_quantiles(values, (at,))[0])

    count, of_metrics = len(null.values[metrics[0].name]), {metric.name: level(metric) for metric in metrics}
    return results.NullSummary(meaning=null.meaning, count=count, distinct=null.distinct, metrics=of_metrics)


def _histogram(scores: Scores) -> results.Histogram:
    name = scores.primary.name
    groups = {
        "records": scores.values[name],
        "held_out": scores.nulls["held_out"].values[name],
        "unrelated": scores.nulls["unrelated"].values[name],
    }
    finite = {group: values[values.isfinite()].double().cpu() for group, values in groups.items()}
    pooled = torch.cat(list(finite.values()))
    low, high = (float(pooled.min()), float(pooled.max())) if len(pooled) else (0.0, 1.0)
    high = high if high > low else low + 1e-6
    counts = {group: tuple(torch.histc(v, BINS, low, high).long().tolist()) for group, v in finite.items()}
    return results.Histogram(edges=tuple(torch.linspace(low, high, BINS + 1, dtype=torch.double).tolist()), **counts)


def _quantiles(values: Tensor, at: tuple[float, ...]) -> list[float | None]:
    finite = values[values.isfinite()].double().cpu()
    if len(finite) == 0:
        return [None for _ in at]
    return [number(float(q)) for q in finite.quantile(torch.tensor(at, dtype=torch.double))]


def _release(finding: Finding) -> results.ReleaseSummary:
    release: Any = finding.release
    shown = {field.name: getattr(release, field.name) for field in fields(release)}
    return results.ReleaseSummary(
        kind=type(release).__name__,
        data=finding.truth.name,
        shows={name: described(value) for name, value in shown.items() if value is not None},
        owned=described(finding.public) if len(finding.public) else "none",
        withholds=release.withholds,
        records=len(finding.truth),
    )


def described(value: object) -> str:
    """A part of a release in a few words."""
    if isinstance(value, dict):
        return f"{sum(p.numel() for p in value.values()):,} numbers in {len(value)} tensors"
    if isinstance(value, Data):
        return f"{len(value):,} records of {value.name}, each {'x'.join(map(str, value.shape))}"
    if isinstance(value, Tensor):
        return f"tensor of shape {'x'.join(map(str, value.shape))}"
    if isinstance(value, nn.Module):
        return ", ".join(_layer(layer) for layer in value.modules() if not list(layer.children()))
    if isinstance(value, tuple):
        if len(value) == 2 and all(isinstance(part, float) for part in value):
            return f"{value[0]:g} to {value[1]:g}"
        sizes = value and all(isinstance(part, int) for part in value)
        return "x".join(map(str, value)) if sizes else ", ".join(map(repr, value)) or "none"
    return str(value)


def _layer(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    shape = f" {'x'.join(map(str, reversed(weight.shape)))}" if isinstance(weight, Tensor) else ""
    return f"{type(layer).__name__}{shape}"
