"""A sweep: one experiment at several values of one setting."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from remanence.experiments.experiment import Experiment, Point

V = TypeVar("V", float, int, str)


def sweep(
    experiment: Experiment,
    axis: str,
    values: Iterable[V],
    vary: Callable[[Experiment, V], Experiment],
    *,
    label: str = "{axis} {value}",
    series: str = "",
    log: bool = False,
) -> list[Experiment]:
    """The experiments `vary(experiment, value)`, labelled and set on the axis, in the order of `values`.

    `label` is a format string with `axis`, `value` and `series`: ``label="epsilon {value:g}"``. Where `vary` changes
    the attack only, all hold the same victims and these are trained once.
    """
    return [
        replace(
            vary(experiment, value),
            label=label.format(axis=axis, value=value, series=series),
            point=Point(axis=axis, value=value, series=series, log=log),
        )
        for value in values
    ]
