"""The page of all claims: complete, self-contained, and safe with any text."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest
from browsing import started
from made_run import made_figure

from remanence.experiments import Claim
from remanence.experiments.results import Result
from remanence.report.reproduction import against, render_reproduction
from remanence.reproduction import (
    STATUSES,
    Contradiction,
    Decided,
    Paper,
    PaperClaim,
    Printed,
    Quantity,
    UpperBound,
    decide,
    read_archive,
)
from remanence_recipes import RECIPES
from remanence_recipes.papers import PAPERS

RESULTS = Path(__file__).parents[2] / "results"
HOSTILE = "<script>alert(1)</script>\"'&"


def rendered(papers: Sequence[Paper] = PAPERS) -> tuple[str, list[Decided]]:
    archive = read_archive(RESULTS, RECIPES)
    decided = decide(papers, archive)
    return render_reproduction(decided, papers, archive, galleries=RESULTS), decided


@pytest.fixture(scope="module")
def page() -> tuple[str, list[Decided]]:
    return rendered()


def test_every_claim_is_on_the_page(page: tuple[str, list[Decided]]) -> None:
    html, decided = page
    assert html.count('<tr class="is-') == len(decided)
    for each in decided:
        assert str(escape(each.row.claim)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in html
    for paper in PAPERS:
        assert f'href="#{paper.name}"' in html
        assert f'id="{paper.name}"' in html
    for status in STATUSES:
        assert html.count(f'<tr class="is-{status.replace(" ", "-")}">') == sum(
            each.row.status == status for each in decided
        )


def test_contradictions_are_explained(page: tuple[str, list[Decided]]) -> None:
    text = unescape(page[0])
    reasons = [each.claim.contradiction for each in page[1] if each.row.status == "contradicted"]
    assert reasons
    for reason in reasons:
        assert reason
        assert reason.says in text
        assert reason.decides in text


def test_nothing_is_loaded_from_elsewhere(page: tuple[str, list[Decided]]) -> None:
    html = page[0].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|url\(|@import|\bsrc=\"(?!data:image/png;base64,)", html)
    galleries = {path for paper in PAPERS for path in (RESULTS / paper.name).glob("*-gallery.png")}
    assert html.count('src="data:image/png') == len(galleries) > 0
    assert len(html) < 2**22


def test_printed_numbers_stand_against_ours(page: tuple[str, list[Decided]]) -> None:
    errors, scores, others = against(page[1])
    rows = [each.row for each in page[1] if is_shown(each)]
    shown = {
        (series.name, x, y)
        for figure in (errors, scores, others)
        for series in figure.series
        if series.role == "ours"
        for x, y in zip(series.x, series.y, strict=True)
    }
    assert shown == {(row.paper, row.printed, row.ours) for row in rows}
    assert ("balle2022", 0.0583) in {(name, x) for name, x, _ in shown}


def is_shown(each: Decided) -> bool:
    """Whether a number can stand on its axis: of errors and scores positive ones alone."""
    criterion, ours = each.claim.criterion, each.row.ours
    if not isinstance(criterion, Printed) or ours is None:
        return False
    return criterion.claim.higher_is_better is None or ours > 0


def test_numbers_that_a_logarithmic_axis_cannot_show_are_counted(page: tuple[str, list[Decided]]) -> None:
    gain = next(each for each in page[1] if each.row.where == "table 3, gain")
    better, worse = (replace(gain, row=replace(gain.row, ours=ours)) for ours in (0.2, -0.1))
    (scores,) = against([better, worse])
    assert scores.title.endswith("1 that is not positive not shown")
    assert [series.y for series in scores.series if series.role == "ours"] == [(0.2,)]


def test_texts_are_escaped(made_archive_result: Result) -> None:
    quantity = Quantity(recipe="balle2022.glm", experiments=("linear classifier",), name="mean mse")
    claim = Claim(quantity="mean mse", higher_is_better=False, printed=1e-12, where="here")
    reason = Contradiction(says=HOSTILE, saw=HOSTILE, decides=HOSTILE)
    claims = (
        PaperClaim(
            where=HOSTILE,
            text=HOSTILE,
            criterion=Printed(quantity=quantity, claim=claim),
            contradiction=reason,
        ),
        PaperClaim(where="x", text="y.", criterion=UpperBound(quantities=(quantity,), bound=1.0)),
    )
    archive = read_archive(RESULTS, RECIPES)
    figures = replace(archive, files=archive.files | {"balle2022/aaa": (made_archive_result,)})
    papers = [Paper(name="balle2022", title=HOSTILE, claims=claims)]
    html = render_reproduction(decide(papers, figures), papers, figures, galleries=RESULTS)
    assert "contradicted" in html
    assert HOSTILE not in html
    assert html.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in html


@pytest.fixture
def made_archive_result() -> Result:
    """A result with a figure whose title is hostile."""
    (first, *_) = read_archive(RESULTS, RECIPES).files["balle2022/glm"]
    return replace(first, figures=(replace(made_figure("lines"), title=HOSTILE),), seed=99, label=HOSTILE)


@pytest.mark.slow
def test_a_browser_shows_and_filters_it(page: tuple[str, list[Decided]], tmp_path: Path) -> None:
    (path := tmp_path / "page.html").write_text(page[0], encoding="utf-8")
    with started() as browser:
        tab = browser.new_page()
        complaints: list[str] = []
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(path.as_uri())
        tab.click("#show-not-run")
        visible = tab.eval_on_selector_all(".reproduced tbody tr", "rows => rows.filter(r => r.offsetParent).length")
        assert visible == sum(each.row.status == "not run" for each in page[1])
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert complaints == []
