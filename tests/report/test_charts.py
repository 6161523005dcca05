"""Charts put values where their axes say, tell series apart without colour, and escape what they are given."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from made_run import made_figure

from remanence.report.charts import LEFT, RIGHT, WIDTH, chart
from remanence.report.figures import rendered
from remanence.report.scales import log_ticks, ticks

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
KINDS = ("lines", "bars", "points")


def series(y: list[float | None], x: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    xs = list(range(len(y))) if x is None else x
    return {"name": "one", "role": "ours", "x": xs, "y": y, "low": None, "high": None} | changes


def paths(svg: str, name: str) -> list[str]:
    return re.findall(rf'<path class="{name}" d="([^"]*)"/>', svg)


def corners(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        [series([])],
        [series([None, None])],
        [series([0.0, 0.0])],
        [series([1.0])],
        [series([-1.0, 2.0], low=[None, 1.0], high=[0.0, None])],
        [series([1e-300, 1e300])],
        [series([float(i) for i in range(500)], low=[0.0] * 500, high=[600.0] * 500)],
    ],
)
def test_charts_are_well_formed(kind: str, log: bool, given: list[Any] | None) -> None:
    series_given = {} if given is None else {"series": given}
    svg = chart(made_figure(kind, log_x=log and kind != "bars", log_y=log, **series_given))
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "style=" not in svg  # the page's policy would refuse it
    assert "nan" not in svg
    assert "inf" not in svg
    assert f"<title>Some {kind}</title>" in svg


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_escaped(kind: str) -> None:
    texts = dict.fromkeys(("title", "x_label", "y_label"), HOSTILE)
    x: list[Any] = [HOSTILE] if kind == "bars" else [1.0]
    roles = ("ours", "chance", "printed", "limit")
    svg = chart(made_figure(kind, **texts, series=[series([1.0], x, name=HOSTILE, role=role) for role in roles]))
    assert "<img" not in svg
    assert svg.count("&lt;img") >= 6


def test_a_line_goes_through_its_points_on_both_kinds_of_axis() -> None:
    for log in (False, True):
        figure = made_figure(log_x=log, log_y=log, series=[series([1.0, 10.0, 100.0], [1.0, 10.0, 100.0])])
        (x0, y0), (x1, y1), (x2, y2) = corners(paths(chart(figure), "line ours c0")[-2])  # the last is in the key
        fraction = 0.5 if log else 9 / 99
        assert (x1 - x0) / (x2 - x0) == pytest.approx(fraction, abs=0.01)
        assert (y1 - y0) / (y2 - y0) == pytest.approx(fraction, abs=0.01)
        assert LEFT < x0 < x2 < WIDTH - RIGHT
        assert y2 < y0  # up is more


def test_a_line_breaks_where_a_value_is_missing() -> None:
    line = paths(chart(made_figure(series=[series([1.0, None, 2.0, 3.0])])), "line ours c0")[0]
    assert re.sub(r"[-\d. ]", "", line) == "MML"


def test_an_interval_reaches_from_low_to_high() -> None:
    svg = chart(made_figure(series=[series([0.5, 1.0], low=[0.0, 0.75], high=[1.0, 1.0])]))
    (whiskers,) = paths(svg, "whisker ours c0")
    (low, high), (half, same) = [(float(a), float(b)) for a, b in re.findall(r" ([\d.]+)V([\d.]+)", whiskers)]
    assert same == high
    assert (low - half) / (low - high) == pytest.approx(0.75, abs=0.01)
    many = [0.5] * 100
    assert len(paths(chart(made_figure(series=[series(many, low=many, high=many)])), "band ours c0")) == 1
    points = chart(made_figure(kind="points", series=[series(many, low=many, high=many)]))
    assert paths(points, "band ours c0") == []  # in no order, so that a band would cross itself
    assert paths(points, "whisker ours c0")[0].count("V") == len(many)


def test_bars_are_as_long_as_their_values() -> None:
    svg = chart(made_figure("bars", series=[series([0.25, 1.0, -0.5], ["a", "b", "c"])]))
    spans = [
        [float(v) for v in re.match(r"M([\d.]+) .*?H([\d.]+)", path).groups()] for path in paths(svg, "bar ours c0")
    ]
    lengths = [end - base for base, end in spans]
    assert lengths == pytest.approx([0.25 * lengths[1], lengths[1], -0.5 * lengths[1]], abs=0.1)
    assert len({base for base, _ in spans}) == 1


def test_a_level_of_chance_runs_across_and_printed_numbers_are_only_marks() -> None:
    svg = chart(made_figure(series=[series([1.0, 2.0]), series([1.5], role="chance"), series([2.0], role="printed")]))
    assert paths(svg, "line chance d0")[0].endswith(f"H{WIDTH - RIGHT}")
    assert paths(svg, "line printed d0") == []
    assert len(paths(svg, "mark printed d0")) == 2  # the mark and its key


def test_series_differ_in_shape_as_well_as_in_colour() -> None:
    svg = chart(made_figure(series=[series([1.0, 2.0], name=str(i)) for i in range(4)]))
    shapes = [re.sub(r"[-\d. ]", "", paths(svg, f"mark ours c{i}")[0]) for i in range(4)]
    assert len(set(shapes)) == 4


def test_long_names_are_truncated_and_shown_to_the_pointer() -> None:
    name = "x" * 200
    svg = chart(made_figure("bars", series=[series([1.0], [name], name=name)]))
    assert svg.count(f"<title>{name}</title>") == 2
    shown = re.findall(r">(x+)…<", svg)
    assert len(shown) == 2
    assert max(map(len, shown)) < 70


def test_the_numbers_of_a_figure_stand_beside_it() -> None:
    shown = rendered(made_figure())
    assert shown.header == ["epochs", "first", "second", "guess", "bound", "paper"]
    assert [x for x, _ in shown.rows] == ["1", "10", "100"]
    assert shown.rows[0][1][0] == ("0.200", "0.100 to 0.300")
    assert shown.rows[1][1][1] == ("\N{EN DASH}", "")  # a value that is missing
    assert shown.rows[2][1][3] == ("", "")  # a series that does not go so far
    assert rendered(made_figure("points")).rows == []


def test_levels_are_upright_lines_where_they_lie_on_the_axis() -> None:
    figure = made_figure(series=[series([1.0, 2.0, 3.0])])
    (x,) = {float(x) for x in re.findall(r'<path class="level" d="M([\d.]+) ', chart(figure, levels={"good": 1.0}))}
    assert x == pytest.approx((LEFT + WIDTH - RIGHT) / 2)
    assert 'class="level"' not in chart(figure, levels={"good": 7.0})


@pytest.mark.parametrize(
    ("log", "low", "high"),
    [
        *((False, *ends) for ends in ((0, 1), (-0.3, 0.45), (0, 0.0021), (12, 40_000), (3, 3))),
        *((True, *ends) for ends in ((1, 100), (0.002, 0.03), (1e-9, 1e3), (3, 4), (1, 1000))),
    ],
)
def test_ticks_are_few_and_inside(log: bool, low: float, high: float) -> None:
    found = (log_ticks if log else ticks)(low, high)
    assert log or found
    assert len(found) <= 9
    assert all(low - 0.01 * abs(low) - 1e-9 <= value <= high + 0.01 * abs(high) + 1e-9 for value in found)
    assert not log or all(f"{value:e}"[0] in "1235" for value in found)


def test_a_level_is_a_line_among_points_too() -> None:
    given = [series([1.0, 3.0, 2.0]), series([1.0, 3.0], x=[0, 2], role="chance")]
    svg = chart(made_figure("points", series=given))
    assert not [path for path in paths(svg, "line ours c0") if "L" in path]  # but for the sample in the key
    (line,) = [path for path in paths(svg, "line chance d0") if "L" in path]
    assert len(corners(line)) == 2
    assert paths(svg, "mark chance d0") == []
