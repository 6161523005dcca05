"""Measures and series of estimates with intervals along an axis, as several recipes report them."""

from collections.abc import Mapping, Sequence

from remanence.experiments import Measure, Series
from remanence.metrics import Interval


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
    curves: Mapping[str, Sequence[Interval]],
    x: tuple[float, ...] | tuple[str, ...],
    chance: Mapping[str, Sequence[float]] | None = None,
) -> tuple[Series, ...]:
    """One series for each curve, with its intervals, then one for each chance level."""
    levels = (Series(name=name, x=x, y=tuple(y), role="chance") for name, y in (chance or {}).items())
    return (*(Series.from_intervals(name, x, estimates) for name, estimates in curves.items()), *levels)
