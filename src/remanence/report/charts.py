"""Charts shown from a figure of a record: lines and points over numbers, bars over texts (decision 0002).

Ours are coloured by a class and by the shape of their marks too; the levels of chance are dashed, limits
dotted, printed numbers hollow.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count

from remanence.experiments.outcome import Figure, Series
from remanence.experiments.words import number
from remanence.report.scales import Scale, can_be_shown, scale_over

WIDTH = 420
LEFT, RIGHT, BOTTOM, PLOT = 58, 20, 48, 190
ROW, GROUP, BAR = 19, 16, 13  # heights: of a line of the key, between groups of bars, of a bar
COLOURS, DASHES = 6, 3
RING = 7  # around a point that is flagged
SPARSE = 30  # so many points of a line get a mark and a whisker each; more get a band


def chart(figure: Figure, *, levels: Mapping[str, float] | None = None) -> str:
    """The figure as SVG; `levels` are named values on the x axis that get an upright line each."""
    series = [each for each in figure.series if any(can_be_shown(y, log=figure.log_y) for y in each.y)]
    if not series:
        return nothing(figure.title)
    return _bars(figure, series) if figure.kind == "bars" else _plane(figure, series, levels or {})


def _plane(figure: Figure, series: Sequence[Series], levels: Mapping[str, float]) -> str:
    classes = _classes(series)
    key, top = _key(series, classes)
    height = top + PLOT + BOTTOM
    xs = [float(x) for each in series for x in each.x]
    across = scale_over(xs, LEFT + 8, WIDTH - RIGHT - 8, log=figure.log_x)
    up = scale_over(_values(series), height - BOTTOM, top + 4, log=figure.log_y, zero=figure.kind == "lines")
    parts = [_frame(figure, across, up, top, height)]
    for each, name in zip(series, classes, strict=True):
        parts.append(_curve(each, name, across, up, joined=figure.kind == "lines"))
    parts += [_level(name, across, value, top, height, row) for row, (name, value) in enumerate(levels.items())]
    return drawing(figure.title, "".join([*parts, key]), height)


def _level(name: str, across: Scale, value: float, top: float, height: float, row: int) -> str:
    """An upright line with its name; nothing where the value lies off the axis."""
    if not across.low <= value <= across.high:
        return ""
    x = across(value)
    anchor, text_x = ("end", x - 4) if x > WIDTH / 2 else ("start", x + 4)
    return (
        f'<path class="level" d="M{x:.1f} {top:g}V{height - BOTTOM:g}"/>'
        f'<text class="level" x="{text_x:.1f}" y="{top + 11 + 14 * row:g}" text-anchor="{anchor}">{escape(name)}</text>'
    )


def _curve(series: Series, name: str, across: Scale, up: Scale, *, joined: bool) -> str:
    xs = [float(x) for x in series.x]
    points = [
        (across(x), up(y)) if y is not None and up.shows(y) and across.shows(x) else None
        for x, y in zip(xs, series.y, strict=True)
    ]
    shown = [point for point in points if point]
    few = len(shown) <= SPARSE
    parts = [_reach(series, points, name, up, band=joined and not few)]
    alone, level = series.role in ("printed", "flagged"), series.role in ("chance", "limit")
    if level and len({x for x, _ in shown}) == 1:  # one value is a level
        return f'<path class="line {name}" d="M{LEFT} {shown[0][1]:.1f}H{WIDTH - RIGHT}"/>'
    if (joined or level) and not alone:
        parts.append(f'<path class="line {name}" d="{_path(points)}"/>')
    if alone or (not joined and not level) or (few and series.role == "ours"):
        size = RING if series.role == "flagged" else 3.6 if few else 2.2
        parts.append(f'<path class="mark {name}" d="{"".join(_mark(name, x, y, size) for x, y in shown)}"/>')
    return "".join(parts)


def _reach(series: Series, points: Sequence[tuple[float, float] | None], name: str, up: Scale, *, band: bool) -> str:
    """The interval of each value: upright lines, or a band along a line of many points."""
    if series.low is None or series.high is None:
        return ""
    bounds = [
        (point[0], up.within(low, y), up.within(high, y))
        for point, y, low, high in zip(points, series.y, series.low, series.high, strict=True)
        if point and y is not None
    ]
    if not band:
        path = "".join(f"M{x:.1f} {low:.1f}V{high:.1f}" for x, low, high in bounds)
        return f'<path class="whisker {name}" d="{path}"/>'
    there = [f"{x:.1f} {low:.1f}" for x, low, _ in bounds]
    back = [f"{x:.1f} {high:.1f}" for x, _, high in reversed(bounds)]
    return f'<path class="band {name}" d="M{"L".join(there + back)}Z"/>'


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """A line that breaks where a value is missing; points that fall together are written once."""
    path, last = "", ""
    for point in points:
        at = f"{point[0]:.1f} {point[1]:.1f}" if point else ""
        path += "" if at == last else f"{'L' if last else 'M'}{at}" if at else ""
        last = at
    return path


def _bars(figure: Figure, series: Sequence[Series]) -> str:
    """Lying bars, so that their names can be read; levels are upright strokes across the bars they belong to."""
    classes = _classes(series)
    key, top = _key(series, classes)
    rows = {name: i for i, name in enumerate(dict.fromkeys(_text(x) for each in series for x in each.x))}
    ours = [each for each in series if each.role == "ours"]
    group = GROUP + BAR * max(1, len(ours))
    left = min(150.0, 14 + 6.4 * max(map(len, rows)))
    height = top + group * len(rows) + BOTTOM
    right = scale_over(_values(series), left, WIDTH - RIGHT - 8, log=figure.log_y, zero=True)
    parts, lanes = [_bar_frame(figure, right, top, height)], count()
    for name, i in rows.items():
        y = top + group * (i + 0.5)
        parts.append(f'<text x="{left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{_short(name, left - 7)}</text>')
    for each, name in zip(series, classes, strict=True):
        lane = BAR * (next(lanes) - (len(ours) - 1) / 2) if each.role == "ours" else None
        middles = [top + group * (rows[_text(x)] + 0.5) for x in each.x]
        parts += [_bar(each, i, name, right, middle, lane, group) for i, middle in enumerate(middles)]
    return drawing(figure.title, "".join([*parts, key]), height)


def _bar(series: Series, i: int, name: str, right: Scale, middle: float, lane: float | None, group: float) -> str:
    value = series.y[i]
    if value is None or not right.shows(value):
        return ""
    x = right(value)
    if series.role in ("printed", "flagged"):
        size = RING if series.role == "flagged" else 4
        return f'<path class="mark {name}" d="{_mark(name, x, middle, size)}"/>'
    if lane is None:
        return f'<path class="line {name}" d="M{x:.1f} {middle - group / 2 + 2:.1f}v{group - 4:.1f}"/>'
    y, base = middle + lane, right(right.low if right.log else 0)
    bar = f'<path class="bar {name}" d="M{base:.1f} {y - 5:.1f}H{x:.1f}v10H{base:.1f}Z"/>'
    if series.low is None or series.high is None:
        return bar
    low, high = (right.within(bound[i], value) for bound in (series.low, series.high))
    return f'{bar}<path class="whisker over" d="M{low:.1f} {y:.1f}H{high:.1f}"/>'


def _classes(series: Sequence[Series]) -> list[str]:
    """A class for each series, counted within its role."""
    counts: dict[str, int] = {}
    names = []
    for each in series:
        point = counts[each.role] = counts.get(each.role, -1) + 1
        ours = each.role == "ours"
        names.append(f"ours c{point % COLOURS}" if ours else f"{each.role} d{point % DASHES}")
    return names


def _mark(name: str, x: float, y: float, r: float) -> str:
    shape = name[-1] if name.startswith("ours") else "0"
    if shape in "14":
        return f"M{x - r:.1f} {y - r:.1f}h{2 * r:g}v{2 * r:g}h{-2 * r:g}Z"
    if shape in "25":
        return f"M{x:.1f} {y - 1.3 * r:.1f}l{1.3 * r:.2f} {2.2 * r:.2f}h{-2.6 * r:.2f}Z"
    if shape == "3":
        d = 1.4 * r
        return f"M{x:.1f} {y - d:.1f}l{d:.2f} {d:.2f}l{-d:.2f} {d:.2f}l{-d:.2f} {-d:.2f}Z"
    return f"M{x - r:.1f} {y:.1f}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0Z"


def _key(series: Sequence[Series], classes: Sequence[str]) -> tuple[str, float]:
    """The names of the series with a sample of each, in as many lines as they need, and the height they take."""
    parts, x, y = [], 4.0, 14.0
    for each, name in zip(series, classes, strict=True):
        width = 38 + 6.8 * min(len(each.name), 58)
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + ROW
        role = each.role
        sample = "" if role in ("printed", "flagged") else f'<path class="line {name}" d="M{x:g} {y - 4:g}h18"/>'
        sample += (
            "" if role in ("chance", "limit") else f'<path class="mark {name}" d="{_mark(name, x + 9, y - 4, 3.6)}"/>'
        )
        parts.append(f'{sample}<text x="{x + 23:g}" y="{y:g}">{_short(each.name, 365)}</text>')
        x += width
    return "".join(parts), y + 14


def _frame(figure: Figure, across: Scale, up: Scale, top: float, height: float) -> str:
    middle, base = (top + height - BOTTOM) / 2, height - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {base:g}H{WIDTH - RIGHT}"/>']
    for value in up.marks:
        parts.append(f'<path class="grid" d="M{LEFT} {up(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    for value in across.marks:
        parts.append(f'<text x="{across(value):.1f}" y="{base + 17:g}" text-anchor="middle">{_tick(value)}</text>')
    parts.append(_label(figure.x_label, (LEFT + WIDTH - RIGHT) / 2, height - 8))
    point = f'transform="translate(11 {middle:g}) rotate(-90)" text-anchor="middle"'
    return "".join([*parts, f'<text class="label" {point}>{_short(figure.y_label, PLOT + 30)}</text>'])


def _bar_frame(figure: Figure, right: Scale, top: float, height: float) -> str:
    base, parts = height - BOTTOM, []
    for value in right.marks:
        parts.append(f'<path class="grid" d="M{right(value):.1f} {top - 2:g}V{base:g}"/>')
        parts.append(f'<text x="{right(value):.1f}" y="{base + 17:g}" text-anchor="middle">{_tick(value)}</text>')
    return "".join([*parts, _label(figure.y_label, (right.start + right.end) / 2, height - 8)])


def _label(text: str, x: float, y: float) -> str:
    return f'<text class="label" x="{x:g}" y="{y:g}" text-anchor="middle">{_short(text, 340)}</text>'


def _tick(value: float) -> str:
    power = math.log10(abs(value)) if value else 0.0
    if power == round(power) and abs(power) > 3:
        return f"10{str(round(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return escape(number(value))


def _short(text: str, width: float) -> str:
    """The text as far as it fits, all of it on a pause of the pointer."""
    fits = int(width / 6.3)
    if len(text) <= fits:
        return escape(text)
    return f"<title>{escape(text)}</title>{escape(text[: fits - 1].rstrip())}…"


def _text(x: object) -> str:
    return x if isinstance(x, str) else number(x)


def _values(series: Sequence[Series]) -> list[float]:
    lists = (values for each in series for values in (each.y, each.low, each.high) if values is not None)
    return [value for values in lists for value in values if value is not None]


def drawing(title: str, body: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" viewBox="0 0 {WIDTH} {height:g}" role="img">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def nothing(title: str, height: float = 120) -> str:
    body = f'<text x="{WIDTH / 2}" y="{height / 2:g}" text-anchor="middle">too few scores to draw</text>'
    return drawing(title, body, height)
