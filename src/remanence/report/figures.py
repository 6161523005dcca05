"""The figures of an attack, as `Figure`s for `charts`, and figures with the table of their values beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from markupsafe import Markup

from remanence.experiments.outcome import Figure, Role, Series
from remanence.experiments.results import Histogram
from remanence.experiments.words import between, number, score
from remanence.metrics import Roc
from remanence.report.charts import chart

MAX_ROWS, MAX_CELLS = 60, 10_000
GROUPS: dict[str, tuple[str, Role]] = {
    "records": ("records", "ours"),
    "held_out": ("held out", "chance"),
    "unrelated": ("unrelated", "chance"),
}


@final
@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A figure as SVG, with its values for readers who cannot or would not read a drawing.

    Each row is x, then for each series its value and its interval; long tables and those of points are left out.
    """

    title: str
    svg: Markup
    note: str
    header: list[str]
    rows: list[tuple[str, list[tuple[str, str]]]]


def rendered(figure: Figure, *, note: str = "") -> Rendered:
    """`figure` as SVG and as a table."""
    xs = list(dict.fromkeys(x for series in figure.series for x in series.x))
    short = len(xs) <= MAX_ROWS and len(xs) * len(figure.series) <= MAX_CELLS and figure.kind != "points"
    columns = [_column(series) for series in figure.series] if short else []
    rows = [(number(x), [column.get(x, ("", "")) for column in columns]) for x in xs] if short else []
    header = [figure.x_label, *(series.name for series in figure.series)] if short else []
    return Rendered(title=figure.title, svg=Markup(chart(figure)), note=note, header=header, rows=rows)


def _column(series: Series) -> dict[float | str, tuple[str, str]]:
    """The value and the interval at each x, of several at one the first."""
    column: dict[float | str, tuple[str, str]] = {}
    xs: tuple[float | str, ...] = series.x
    for i, x in enumerate(xs):
        low, high = (bound[i] if bound else None for bound in (series.low, series.high))
        column.setdefault(x, (score(series.y[i]), between(low, high)))
    return column


def histogram(counts: Histogram, *, metric: str, better: str, levels: Mapping[str, float]) -> str:
    """The distribution of the records' scores beside those of two nulls, each as fractions of its own group.

    `levels` are upright lines: the value that only 1 % of the null scores reach, what the literature calls a success.
    """
    figure = Figure(
        title=f"Distribution of {metric}: the records beside the nulls",
        x_label=f"{metric} ({better})",
        y_label="fraction of the scores",
        series=tuple(_outline(name, role, counts.edges, getattr(counts, key)) for key, (name, role) in GROUPS.items()),
    )
    return chart(figure, levels=levels)


def _outline(name: str, role: Role, edges: Sequence[float], counts: Sequence[int]) -> Series:
    """The outline of a histogram, from the axis up and back to it."""
    total = sum(counts) or 1
    x = tuple(edge for edge in edges for _ in range(2))
    y = (0.0, *(count / total for count in counts for _ in range(2)), 0.0)
    return Series(name=name, x=x, y=y if x else (), role=role)


def roc(curve: Roc) -> str:
    """The true-positive rate against the false-positive rate on a logarithmic axis: what counts is its left end."""
    low = min([value for value in curve.fpr if value > 0], default=1.0)
    low = min(low, 0.1)  # further left there is nothing to tell a rate from zero
    points = sorted(zip(curve.fpr, curve.tpr, strict=True))
    corners = [(after[0], before[1]) for before, after in pairwise(points)]
    shown = list(dict.fromkeys((max(x, low), round(y, 3)) for x, y in sorted(points + corners)))
    diagonal = tuple(low ** (1 - i / 40) for i in range(41))
    figure = Figure(
        title="Fraction of records that beat held-out ones at each false-positive rate",
        x_label="false-positive rate, logarithmic",
        y_label="fraction of records",
        series=(
            Series(name="this attack", x=tuple(x for x, _ in shown), y=tuple(y for _, y in shown)),
            Series(name="chance", x=diagonal, y=diagonal, role="chance"),
        ),
        log_x=True,
    )
    return chart(figure, levels={"1\N{NO-BREAK SPACE}%": 0.01})


def interval(value: float, low: float, high: float, chance: float) -> str:
    """A fraction with its interval on a line from nothing to all; hidden from screen readers, as the words beside it
    say the same."""

    def x(v: float) -> str:
        return f"{6 + 228 * min(max(v, 0.0), 1.0):.1f}"

    return (
        '<svg class="interval" viewBox="0 0 240 16" aria-hidden="true">'
        f'<path class="track" d="M{x(0)} 8H{x(1)}"/><path class="chance" d="M{x(chance)} 1V15"/>'
        f'<path class="reach" d="M{x(low)} 8H{x(high)}"/><circle class="share" cx="{x(value)}" cy="8" r="5"/></svg>'
    )
