"""The cells of a run side by side: a figure for each axis along which it walks, another for the limits, a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from remanence.experiments.results import FigureRecord, Record, SeriesRecord
from remanence.experiments.results.schema import LimitRecord, PointRecord
from remanence.report.drawn import Drawn, drawn
from remanence.report.words import number

LEVELS = {"nearest_neighbour": "nearest neighbour", "mean_image": "mean image"}
Interval: TypeAlias = tuple[float | None, float | None, float | None]  # value, low, high
Value: TypeAlias = Callable[[Record], Interval]


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One cell in the table of all."""

    place: int  # in the run, from 1
    record: Record
    metric: dict[str, Any]
    printed: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Overview:
    axes: list[Drawn]
    limits: list[Drawn]
    lines: list[Line]
    printed: bool  # whether a paper prints a mean for any


def overview(records: Sequence[Record]) -> Overview | None:
    """Nothing for a run with one cell: there is nothing to stand side by side."""
    lines = [_line(i, record) for i, record in enumerate(records, 1) if record["kind"] == "attack"]
    if len(lines) < 2:
        return None
    groups = _groups(line.record for line in lines)
    bounded = [kept for group in groups if (kept := [record for record in group if record["limit"]])]
    return Overview(
        axes=[_axis(group) for group in groups],
        limits=[_limits(group) for group in bounded],
        lines=lines,
        printed=any(line.printed is not None for line in lines),
    )


def _line(place: int, record: Record) -> Line:
    metric = record["scores"]["metrics"][record["scores"]["primary"]]
    return Line(place=place, record=record, metric=metric, printed=_printed(record))


def _printed(record: Record) -> float | None:
    """What a paper prints for the mean of the primary metric."""
    name = f"mean {record['scores']['primary']}".casefold()
    printed = (claim["printed"] for claim in record["claims"] if claim["quantity"].casefold() == name)
    return next((value for value in printed if value is not None), None)


def _groups(records: Iterable[Record]) -> list[list[Record]]:
    """The cells that stand on one axis and are scored alike."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["point"]:
            groups.setdefault((_point(record)["axis"], record["scores"]["primary"]), []).append(record)
    return list(groups.values())


def _point(record: Record) -> PointRecord:
    point = record["point"]
    assert point is not None  # only cells with one are grouped
    return point


def _axis(group: Sequence[Record]) -> Drawn:
    primary = group[0]["scores"]["primary"]

    def mean(record: Record) -> Interval:
        said = record["scores"]["metrics"][primary]
        return said["mean"], said["low"], said["high"]

    def level(null: str) -> Value:
        return lambda record: _bare(record["nulls"][null]["metrics"].get(primary, {}).get("mean"))

    series = _per_series(group, mean, f"mean {primary}", "ours")
    for null, name in LEVELS.items():
        series += _shared(group, level(null), name, "chance")
    series += _shared(group, lambda record: _bare(_printed(record)), "printed", "printed")
    better = "higher" if group[0]["scores"]["metrics"][primary]["higher_is_better"] else "lower"
    title = f"Mean {primary} against {_point(group[0])['axis']}"
    figure = _figure(group, title, f"mean {primary} ({better} is better)", series)
    return drawn(figure, note="Each mean with its 95\N{NO-BREAK SPACE}% interval over the records.")


def _limits(group: Sequence[Record]) -> Drawn:
    def success(record: Record) -> Interval:
        said = _limit(record)["success"]
        return said["value"], said["low"], said["high"]

    def above(record: Record) -> Interval:
        value = _limit(record)["success"]["value"]
        return _bare(value if value > _limit(record)["bound"] else None)

    flagged = _shared(group, above, "above the limit", "flagged")
    series = [
        *_per_series(group, success, "measured", "ours"),
        *_shared(group, lambda record: _bare(_limit(record)["bound"]), "limit", "limit"),
        *_shared(group, lambda record: _bare(_limit(record)["prior"]), "guess without the release", "chance"),
        *flagged,
    ]
    title = f"Success against {_point(group[0])['axis']}, and what privacy allows"
    warning = " A ringed point lies above its limit: see its section." if flagged else ""
    return drawn(
        _figure(group, title, "share of records", series),
        note=f"No attack on a differentially private release can be above the limit.{warning}",
    )


def _limit(record: Record) -> LimitRecord:
    limit = record["limit"]
    assert limit is not None
    return limit


def _bare(value: float | None) -> Interval:
    return value, None, None


def _figure(group: Sequence[Record], title: str, y_label: str, series: list[SeriesRecord]) -> FigureRecord:
    texts = _has_texts(group)
    return FigureRecord(
        title=title,
        x_label=_point(group[0])["axis"],
        y_label=y_label,
        kind="bars" if texts else "lines",
        log_x=not texts and any(_point(record)["log"] for record in group),
        log_y=False,
        series=series,
    )


def _has_texts(group: Sequence[Record]) -> bool:
    return any(isinstance(_point(record)["value"], str) for record in group)


def _per_series(group: Sequence[Record], value: Value, name: str, role: str) -> list[SeriesRecord]:
    texts, members = _has_texts(group), dict.fromkeys(_point(record)["series"] for record in group)
    return [
        _series([r for r in group if _point(r)["series"] == each], value, each or name, role, texts=texts)
        for each in members
    ]


def _shared(group: Sequence[Record], value: Value, name: str, role: str) -> list[SeriesRecord]:
    """One series for all cells where they agree about each place on the axis, as levels of chance mostly do."""
    whole = _series(group, value, name, role, texts=_has_texts(group))
    pairs = [(x, y) for x, y in zip(whole["x"], whole["y"], strict=True) if y is not None]
    agreed = dict(pairs)
    if any(agreed[x] != y for x, y in pairs):
        return [{**each, "name": f"{name}, {each['name']}"} for each in _per_series(group, value, "others", role)]
    return [{**whole, "x": list(agreed), "y": list(agreed.values())}] if agreed else []


def _series(group: Sequence[Record], value: Value, name: str, role: str, *, texts: bool) -> SeriesRecord:
    placed = [(_point(record)["value"], value(record)) for record in group]
    if texts:
        placed = [(number(x), said) for x, said in placed]
    else:
        placed.sort(key=lambda pair: float(pair[0]))
    y, low, high = ([said[i] for _, said in placed] for i in range(3))
    bounded = any(bound is not None for bound in low)
    x = [place for place, _ in placed]
    return SeriesRecord(name=name, role=role, x=x, y=y, low=low if bounded else None, high=high if bounded else None)
