"""What several recipes report: fractions, and estimates with intervals along an axis as measures and series."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from remanence.experiments import Claim, Experiment, Figure, Measure, Measurement, Outcome, Series
from remanence.experiments.outcome import Kind
from remanence.metrics import Interval
from remanence.metrics.statistics import binomial_proportion, clustered_proportion


def measured(
    label: str, about: str, measure: Callable[[int, torch.device], Outcome], claims: tuple[Claim, ...] = ()
) -> Experiment:
    """An experiment without victims of its own: what `measure(seed, device)` gives."""
    return Experiment(label=label, about=about, evaluations=(Measurement(measure=measure),), claims=claims)


def proportion(name: str, which: Tensor, *, meaning: str, chance: float | None = None) -> Measure:
    """The fraction of a mask that is true, with its binomial interval."""
    found = binomial_proportion(int(which.sum()), which.numel())
    return Measure.from_interval(name, found, meaning=meaning, chance=chance)


def proportion_of_batches(
    name: str, batches: Sequence[Tensor], *, meaning: str, chance: float | None = None
) -> Measure:
    """The fraction of the masks of batches of one size that is true, with its interval over batches: the records of
    one stand or fall together."""
    counts = [int(each.sum()) for each in batches]
    found = clustered_proportion(counts, batches[0].numel())
    meaning = f"{meaning}: {', '.join(map(str, counts))} of {batches[0].numel()}"
    return Measure.from_interval(name, found, meaning=meaning, chance=chance)


def measures_along(
    curves: Mapping[str, Sequence[Interval]], points: Sequence[str], *, meaning: str, chance: Sequence[float | None]
) -> tuple[Measure, ...]:
    """One measure for each curve and point of the axis, named "curve, point", with the point's chance level."""
    return tuple(
        Measure.from_interval(f"{curve}, {point}", estimate, meaning=meaning, chance=level)
        for curve, estimates in curves.items()
        for point, estimate, level in zip(points, estimates, chance, strict=True)
    )


def series_along(
    curves: Mapping[str, Sequence[Interval | Measure]],
    x: tuple[float, ...] | tuple[str, ...],
    chance: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Series, ...]:
    """One series for each curve, with its intervals, then one for each chance level."""
    levels = (Series(name=name, x=x, y=tuple(y), role="chance") for name, y in (chance or {}).items())
    return (*(Series.from_intervals(name, x, estimates) for name, estimates in curves.items()), *levels)


def figure_along(
    title: str,
    labels: tuple[str, str],
    curves: Mapping[str, Sequence[Interval | Measure]],
    x: Sequence[float | str],
    chance: Mapping[str, Sequence[float]] | None = None,
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """The figure of `series_along`, with the labels of both axes: lines over numbers, bars over texts."""
    texts = tuple(each for each in x if isinstance(each, str))
    series = series_along(curves, texts or tuple(float(each) for each in x), chance)
    kind: Kind = "bars" if texts else "lines"
    return Figure(title=title, x_label=labels[0], y_label=labels[1], series=series, kind=kind, log_x=log_x, log_y=log_y)
