"""The attacks of a run side by side: a figure for each axis of a sweep, another for the limits, a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from remanence.experiments.experiment import Point
from remanence.experiments.outcome import Figure, Role, Series
from remanence.experiments.results import AttackSummary, MetricSummary, Result
from remanence.experiments.words import number
from remanence.metrics.limit import ASSUMPTIONS, Limit
from remanence.report.figures import Rendered, rendered

LEVELS = {"nearest_neighbour": "nearest neighbour", "mean_image": "mean image"}


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One attack of the run: a line of the table, and where it has a point, a point of a figure."""

    position: int  # in the run, from 1
    result: Result
    attack: AttackSummary
    metric: MetricSummary
    printed: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Placed:
    """An attack on an axis."""

    line: Line
    point: Point


Values: TypeAlias = tuple[float | None, float | None, float | None]  # value, low, high
Value: TypeAlias = Callable[[Placed], Values]


@final
@dataclass(frozen=True, kw_only=True)
class Overview:
    """What the page shows of all attacks together."""

    axes: list[Rendered]
    limits: list[Rendered]
    lines: list[Line]
    printed: bool  # whether a paper prints a mean for any


def overview(results: Sequence[Result]) -> Overview | None:
    """The attacks of a run side by side; None for a run with one."""
    lines = [_line(i, result, result.attack) for i, result in enumerate(results, 1) if result.attack]
    if len(lines) < 2:
        return None
    groups = _groups(lines)
    bounded = [limited for group in groups if (limited := [each for each in group if each.line.attack.limit])]
    return Overview(
        axes=[_axis(group) for group in groups],
        limits=[_limits(group) for group in bounded],
        lines=lines,
        printed=any(line.printed is not None for line in lines),
    )


def _line(position: int, result: Result, attack: AttackSummary) -> Line:
    scores = attack.scores
    name = f"mean {scores.primary}".casefold()
    printed = (claim.printed for claim in result.claims if claim.quantity.casefold() == name)
    first = next((value for value in printed if value is not None), None)
    return Line(position=position, result=result, attack=attack, metric=scores.metrics[scores.primary], printed=first)


def _groups(lines: Sequence[Line]) -> list[list[Placed]]:
    """The attacks that stand on one axis and are scored alike."""
    groups: dict[tuple[str, str], list[Placed]] = {}
    for line in lines:
        if (point := line.result.point) is not None:
            key = (point.axis, line.attack.scores.primary)
            groups.setdefault(key, []).append(Placed(line=line, point=point))
    return list(groups.values())


def _axis(group: Sequence[Placed]) -> Rendered:
    primary = group[0].line.attack.scores.primary

    def mean(placed: Placed) -> Values:
        metric = placed.line.metric
        return metric.mean, metric.low, metric.high

    def level(null: str) -> Value:
        def value(placed: Placed) -> Values:
            metrics = getattr(placed.line.attack.nulls, null).metrics
            return _without_interval(metrics[primary].mean if primary in metrics else None)

        return value

    series = _per_series(group, mean, f"mean {primary}", "ours")
    for null, name in LEVELS.items():
        series += _common(group, level(null), name, "chance")
    series += _common(group, lambda placed: _without_interval(placed.line.printed), "printed", "printed")
    better = "higher" if group[0].line.metric.higher_is_better else "lower"
    title = f"Mean {primary} against {group[0].point.axis}"
    figure = _figure(group, title, f"mean {primary} ({better} is better)", series)
    return rendered(figure, note="Each mean with its 95\N{NO-BREAK SPACE}% interval over the records.")


def _limits(group: Sequence[Placed]) -> Rendered:
    def success(placed: Placed) -> Values:
        found = _limit(placed).success
        return found.value, found.low, found.high

    def above(placed: Placed) -> Values:
        value = _limit(placed).success.value
        return _without_interval(value if value > _limit(placed).bound else None)

    flagged = _common(group, above, "above the limit", "flagged")
    series = [
        *_per_series(group, success, "measured", "ours"),
        *_common(group, lambda placed: _without_interval(_limit(placed).bound), "limit", "limit"),
        *_common(group, lambda placed: _without_interval(_limit(placed).prior), "guess without the release", "chance"),
        *flagged,
    ]
    title = f"Success against {group[0].point.axis}, and what privacy allows"
    warning = " A ringed point lies above its limit: see its section." if flagged else ""
    return rendered(
        _figure(group, title, "fraction of records", series),
        note=f"No attack on a differentially private release can be above the limit. {ASSUMPTIONS}{warning}",
    )


def _limit(placed: Placed) -> Limit:
    limit = placed.line.attack.limit
    assert limit is not None
    return limit


def _without_interval(value: float | None) -> Values:
    return value, None, None


def _figure(group: Sequence[Placed], title: str, y_label: str, series: list[Series]) -> Figure:
    texts = _has_texts(group)
    return Figure(
        title=title,
        x_label=group[0].point.axis,
        y_label=y_label,
        kind="bars" if texts else "lines",
        log_x=not texts and any(placed.point.log for placed in group),
        series=tuple(series),
    )


def _has_texts(group: Sequence[Placed]) -> bool:
    return any(isinstance(placed.point.value, str) for placed in group)


def _per_series(group: Sequence[Placed], value: Value, name: str, role: Role) -> list[Series]:
    texts, members = _has_texts(group), dict.fromkeys(placed.point.series for placed in group)
    return [
        _series([p for p in group if p.point.series == each], value, each or name, role, texts=texts)
        for each in members
    ]


def _common(group: Sequence[Placed], value: Value, name: str, role: Role) -> list[Series]:
    """One series for all where they agree about each position on the axis, as null levels mostly do."""
    pooled = _series(group, value, name, role, texts=_has_texts(group))
    pairs = [(x, y) for x, y in zip(pooled.x, pooled.y, strict=True) if y is not None]
    agreed = dict(pairs)
    if any(agreed[x] != y for x, y in pairs):
        return [replace(each, name=f"{name}, {each.name}") for each in _per_series(group, value, "others", role)]
    return [Series(name=name, x=tuple(agreed), y=tuple(agreed.values()), role=role)] if agreed else []  # type: ignore[arg-type]


def _series(group: Sequence[Placed], value: Value, name: str, role: Role, *, texts: bool) -> Series:
    points = [(placed.point.value, value(placed)) for placed in group]
    if texts:
        points = [(number(x), values) for x, values in points]
    else:
        points.sort(key=lambda pair: float(pair[0]))
    y, low, high = (tuple(values[i] for _, values in points) for i in range(3))
    bounded = any(bound is not None for bound in low)
    x = tuple(x for x, _ in points)
    return Series(name=name, role=role, x=x, y=y, low=low if bounded else None, high=high if bounded else None)  # type: ignore[arg-type]
