"""Leakage against accuracy: one point for each stand-in that was made with a countermeasure; and both of a sweep."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from remanence.auditing.answer.report import Countermeasure, Evidence
from remanence.experiments.outcome import Figure, Series
from remanence.metrics import Interval
from remanence.metrics.evaluation import FPR
from remanence.metrics.statistics import binomial_proportion

Leakage: TypeAlias = Literal["found", "membership"]
_LABELS: dict[Leakage, str] = {
    "found": "fraction of the records found",
    "membership": "AUC of membership inference",
}


def tradeoff(rows: Sequence[Countermeasure], *, by: Leakage | None = None) -> Figure:
    """The leakage of each stand-in over its accuracy; by default the records found, or membership where none are."""
    chosen: Leakage = by or ("found" if any(row.attack and row.attack.found for row in rows) else "membership")
    names = dict.fromkeys(row.name for row in (*rows[1:], *rows[:1]))  # the baseline above all others
    series = [each for name in names if (each := _series(name, rows, chosen))]
    if series:
        series += _levels(rows, chosen)
    return Figure(
        title=f"Leakage against accuracy: {_LABELS[chosen]}",
        x_label="accuracy on held-out records",
        y_label=_LABELS[chosen],
        series=tuple(series),
    )


def _series(name: str, rows: Sequence[Countermeasure], by: Leakage) -> Series | None:
    points = [
        (row.accuracy.value, leaked)
        for row in rows
        if row.name == name and row.accuracy is not None and (leaked := leakage(row, by)) is not None
    ]
    points.sort(key=lambda point: point[0])
    return Series.from_intervals(name, tuple(x for x, _ in points), [y for _, y in points]) if points else None


def leakage(row: Countermeasure, by: Leakage) -> Interval | None:
    """What leaks from a stand-in, as a fraction of its records or an AUC; None where it was not measured."""
    if by == "membership":
        return _interval(row.auc)
    attack = row.attack
    if row.together is not None:
        return binomial_proportion(row.together.found, row.together.records)
    if attack is None or not attack.records or attack.found is None or attack.low is None or attack.high is None:
        return None
    value, low, high = (each / attack.records for each in (attack.found, attack.low, attack.high))
    return Interval(value=value, low=low, high=high)


def along_sweep(rows: Sequence[Countermeasure], *, noun: str = "record") -> Figure:
    """The records found, the tokens and labels inferred and the accuracy, as fractions, for each setting of a sweep;
    none where the rows are not of one."""
    shown = [row for row in rows if row.status == "ran"] if any(row.value is not None for row in rows) else []
    measured: dict[str, Callable[[Countermeasure], Interval | None]] = {
        f"{noun}s found": lambda row: leakage(row, "found"),
        "tokens found": lambda row: _interval(row.tokens),
        "labels inferred": lambda row: _interval(row.labels),
        "accuracy": lambda row: row.accuracy,
    }
    series = list[Series]()
    for name, value in measured.items():
        there = [(row.setting, each) for row in shown if (each := value(row)) is not None]
        if there:
            series.append(Series.from_intervals(name, tuple(x for x, _ in there), [each for _, each in there]))
    for name, evidence in {"tokens by chance": "tokens", "labels by chance": "labels"}.items():
        levels = [(row.setting, each.chance) for row in shown if (each := getattr(row, evidence)) is not None]
        by_chance = [(setting, chance) for setting, chance in levels if chance is not None]
        if by_chance:
            x, y = tuple(x for x, _ in by_chance), tuple(chance for _, chance in by_chance)
            series.append(Series(name=name, x=x, y=y, role="chance"))
    return Figure(
        title="What each defense hides" + (", and what it costs" if any(row.accuracy for row in shown) else ""),
        x_label="setting",
        y_label="fraction",
        series=tuple(series),
        kind="bars",
    )


def _interval(shown: Evidence | None) -> Interval | None:
    if shown is None or shown.value is None or shown.low is None or shown.high is None:
        return None
    return Interval(value=shown.value, low=shown.low, high=shown.high)


def _levels(rows: Sequence[Countermeasure], by: Leakage) -> list[Series]:
    """Chance, over all accuracies, and what differential privacy guarantees at each of its own."""
    accuracies = sorted({row.accuracy.value for row in rows if row.accuracy is not None})
    chance = 0.5 if by == "membership" else _chance(rows)
    levels = [Series(name="chance", x=tuple(accuracies), y=(chance,) * len(accuracies), role="chance")]
    bounds = sorted((r.accuracy.value, r.bound) for r in rows if r.accuracy is not None and r.bound is not None)
    if by == "found" and bounds:
        x, y = tuple(x for x, _ in bounds), tuple(bound for _, bound in bounds)
        levels.append(Series(name="bound by differential privacy", x=x, y=y, role="limit"))
    return levels


def _chance(rows: Sequence[Countermeasure]) -> float:
    """The fraction of records that would count as found without a leak, the largest of the rows."""
    fractions = [r.attack.chance / r.attack.records for r in rows if r.attack and r.attack.chance and r.attack.records]
    return max(fractions, default=FPR)
