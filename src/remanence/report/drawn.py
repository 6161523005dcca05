"""A figure of a record with its drawing, and its numbers for those who cannot or would not read a drawing."""

from dataclasses import dataclass
from typing import final

from markupsafe import Markup

from remanence.experiments.results import FigureRecord, SeriesRecord
from remanence.report.charts import chart
from remanence.report.words import between, number, score

MOST_ROWS = 60


@final
@dataclass(frozen=True, kw_only=True)
class Drawn:
    title: str
    svg: Markup
    note: str
    header: list[str]
    rows: list[tuple[str, list[tuple[str, str]]]]  # x, then for each series its value and its interval


def drawn(figure: FigureRecord, *, note: str = "") -> Drawn:
    """The drawing; without a table where that would be longer than anybody reads."""
    xs = list(dict.fromkeys(x for series in figure["series"] for x in series["x"]))
    rows = [(number(x), [_at(series, x) for series in figure["series"]]) for x in xs]
    header = [figure["x_label"], *(series["name"] for series in figure["series"])]
    short = len(xs) <= MOST_ROWS and figure["kind"] != "points"
    return Drawn(title=figure["title"], svg=Markup(chart(figure)), note=note, header=header, rows=rows if short else [])


def _at(series: SeriesRecord, x: float | str) -> tuple[str, str]:
    if x not in series["x"]:
        return "", ""
    i = series["x"].index(x)
    low, high = (bound[i] if bound else None for bound in (series["low"], series["high"]))
    return score(series["y"][i]), between(low, high)
