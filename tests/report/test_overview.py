"""What the page says of several attacks side by side, and of the limits that privacy sets them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from made_run import edited, made_claim, made_limit, made_point, made_run

from remanence.experiments.folder import Run
from remanence.report import render

SPACE, DASH = "\N{NO-BREAK SPACE}", "\N{EN DASH}"


def together(values: Sequence[Any], axis: str = "epsilon", **fields: Any) -> Run:
    """Attacks along an axis, the mean of each a tenth more than that of the one before."""
    run = made_run([f"attack {value}" for value in values])
    for i, value in enumerate(values):
        claims = [made_claim("Mean SSIM", 0.05, "figure 1", 0.1)]
        mean = 0.1 * (i + 1)
        changes = {"point": made_point(axis, value), "attack__scores__metrics__ssim__mean": mean, "claims": claims}
        run = edited(run, i, **changes, **fields)
    return run


def test_attacks_on_an_axis_are_drawn_together() -> None:
    page = render(together([10.0, 1.0, 100.0]))
    assert "Mean ssim against epsilon" in page
    section = page[page.index('id="together"') : page.index('id="reading"')]
    assert [name in section for name in ("mean ssim", "nearest neighbour", "mean image", "printed")] == [True] * 4
    numbers = section[section.index("The numbers") : section.index("</details>")]
    assert re.findall(r'<th scope="row">([\d.]+)</th><td class="num">([\d.]+)', numbers) == [
        ("1", "0.200"),
        ("10", "0.100"),
        ("100", "0.300"),
    ]
    assert section.count('href="#result-') == 3
    assert "Side by side" not in render(together([1.0]))


def test_attacks_over_texts_are_bars_and_other_axes_other_figures() -> None:
    run = together(["ReLU", "ELU"], axis="activation")
    run.results.extend(together([1.0, 2.0]).results)
    page = render(replace(run, rows=[], images={}))
    assert "Mean ssim against activation" in page
    assert "Mean ssim against epsilon" in page
    assert page.count('class="bar ours c0"') == 2


def test_levels_that_differ_between_series_are_drawn_for_each() -> None:
    run = together([1.0, 2.0])
    for i, name in enumerate(("ELU", "ReLU")):
        run = edited(run, i, point=made_point("epsilon", 1.0, series=name))
    assert ">nearest neighbour</text>" in render(run)
    page = render(edited(run, 1, attack__nulls__nearest_neighbour__metrics__ssim__mean=0.9))
    assert ">nearest neighbour, ReLU</text>" in page
    assert ">nearest neighbour</text>" not in page


@pytest.mark.slow
def test_the_table_of_attacks_has_a_dash_for_what_is_not_known() -> None:
    run = made_run(["one", "two"])  # the second has no count of closer records and nothing printed
    section = render(run)[: render(run).index('id="reading"')]
    assert f'<td class="num">0{SPACE}%</td><td class="num">{DASH}</td><td class="num">{DASH}</td></tr>' in section
    assert f'<td class="num">50{SPACE}%</td><td class="num">0.62</td></tr>' in section
    run = edited(edited(run, 0, claims=[]), 1, claims=[])
    assert "Printed, target" not in render(run)
    assert "printed mean" not in render(run)


@pytest.mark.parametrize(
    ("success", "bound", "words"), [(0.1, 0.2, ""), (0.21, 0.2, "though no further"), (0.5, 0.2, "there is a bug")]
)
def test_success_above_the_limit_is_flagged(success: float, bound: float, words: str) -> None:
    page = render(together([1.0, 10.0], attack__limit=made_limit(success, bound)))
    assert "what privacy allows" in page
    assert f"can do so more than 20{SPACE}% of the time" in page
    assert page.count(words or "Above the limit") == (0 if not words else 4)  # of two attacks, each twice
    assert ("mark flagged" in page) is bool(words)
