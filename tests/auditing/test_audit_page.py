"""The page of an audit as a reader meets it: on a desktop, on a phone, on paper, redacted, with hostile texts."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import started
from made_report import FAILED, RAN, REFUSED, SKIPPED, TOGETHER, TPR, made_answer, null_answer, real_report
from playwright.sync_api import Browser, Page

from remanence.auditing import Report
from remanence.columns import Column, Columns

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
REASON = "Attack needs `gradient`, `defenses`, `at`, `sent`, `labels`, which a WeightsOnly release does not show"
TEN = (RAN, *(replace(REFUSED, name=f"Attack{i}", reason=REASON) for i in range(9)))
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as launched:
        yield launched


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_it(html: str, *, width: int = 1280, height: int = 800, heard: list[str] | None = None) -> Page:
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: (heard if heard is not None else []).append(message.text))
        page.on("dialog", lambda dialog: (heard if heard is not None else []).append(dialog.message))
        page.goto(path.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize("table", [False, True])
def test_one_screen_for_the_answer_and_under_6000_pixels(open_page: Open, table: bool) -> None:
    report = real_report(table)
    heard: list[str] = []
    page = open_page(replace(report, answer=replace(report.answer, attacks=TEN)).to_html(), heard=heard)
    box = page.locator("header.screen").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    assert page.locator("header [aria-current=true]").inner_text().startswith("many records")
    assert page.locator("header table img").count() == (0 if table else 24)
    assert heard == []


@pytest.mark.slow
@pytest.mark.parametrize("table", [False, True])
def test_phone_does_not_scroll_sideways(open_page: Open, table: bool) -> None:
    page = open_page(real_report(table).to_html(), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("button.unfold").click()
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_redacted_it_is_at_most_three_printed_pages(open_page: Open) -> None:
    report = real_report()
    evidence = tuple(replace(TPR, name=f"evidence {i}", meaning="what was measured, " * 6) for i in range(10))
    columns = tuple(replace(TPR, name=f"column {i}", group="other") for i in range(24))
    answer = replace(report.answer, attacks=TEN, evidence=evidence + columns)
    page = open_page(replace(report, answer=answer).to_html(redact=True))
    printed = page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 3


@pytest.mark.slow
def test_hostile_texts_are_shown_as_texts(open_page: Open) -> None:
    heard: list[str] = []
    rows = (replace(RAN, call=HOSTILE), replace(REFUSED, reason=HOSTILE))
    answer = made_answer(verdict=HOSTILE, attacks=rows, command=HOSTILE, advice=(HOSTILE,), correction=HOSTILE)
    page = open_page(Report(answer=answer).to_html(), heard=heard)
    assert heard == []
    assert page.locator("h1").inner_text() == HOSTILE


def test_every_attack_is_a_row_and_what_was_not_tested_says_so() -> None:
    html = Report(answer=made_answer()).to_html()
    table = html[html.index('<table class="attacks">') : html.index("</table>", html.index('<table class="attacks">'))]
    rows = {name: row for row in table.split("<tr")[2:] for name in re.findall(r'scope="row">(\w+)', row)}
    assert list(rows) == ["FirstLayer", "GLM", "Stein", "KKT"]
    assert [
        ("not tested" in rows[row.name], str(row.reason) in rows[row.name].replace("&#39;", "'"))
        for row in (REFUSED, SKIPPED, FAILED)
    ] == [(True, True)] * 3
    assert "not tested" not in rows["FirstLayer"]


def test_ladder_shows_the_strongest_of_each_rung_and_names_those_not_tested() -> None:
    weak = replace(RAN, name="Stein", found=1)
    html = Report(answer=made_answer(attacks=(weak, RAN, REFUSED))).to_html()
    rungs = re.findall(r'<li class="(asked|unasked)"><span class="knowledge">([^<]*)</span>(.*)</li>', html)
    assert [(kind, name) for kind, name, _ in rungs] == [
        ("unasked", "the weights"),
        ("unasked", "the weights and the base"),
        ("unasked", "all records but one"),
        ("asked", "an update"),
    ]
    assert all("not tested" in text for kind, _, text in rungs if kind == "unasked")
    assert "20 of 32</strong> FirstLayer" in rungs[-1][2]
    versions = Report(answer=made_answer(attacks=(RAN, replace(REFUSED, name="NewtonStep", knowledge="two versions"))))
    assert "not tested: NewtonStep did not run" in versions.to_html()


def test_the_page_says_where_no_list_was_possible() -> None:
    few = replace(TOGETHER, found=0, copies=0, p=0.4, held_out=40, smallest_list=33, needed=24)
    html = Report(answer=null_answer(together=few, severity="inconclusive")).to_html()
    assert "too few were held out for any list" in html
    assert "none stands out" not in html


def test_inconclusive_evidence_and_no_evidence_are_words_of_their_own() -> None:
    answer = made_answer()
    unknown = replace(answer.evidence[0], value=None, low=None, high=None)
    assert "<strong>inconclusive</strong>" in Report(answer=replace(answer, evidence=(unknown,))).to_html()
    assert "Not tested: this release shows nothing" in Report(answer=null_answer(evidence=())).to_html()


def test_a_table_is_shown_in_the_units_of_its_owner() -> None:
    report = real_report(table=True)
    assert report.truth is not None
    columns = tuple(Column(name=f"pixel {i}", start=i, high=16.0, resolution=1.0, unit="mm") for i in range(64))
    named = Columns(columns=columns, classes=("zero", "one", "two", "three", "four", "five", "six", "seven"))
    html = replace(report, truth=replace(report.truth, columns=named)).to_html()
    record, name = re.findall(r"Record (\d), label (\w+)", html)[0]
    assert named.classes[int(report.truth.y[int(record)])] == name
    value = round(float(report.truth.x[int(record), 2]) * 16)
    row = html[html.index('<th scope="row">pixel 2</th>') :]
    assert row.startswith(f'<th scope="row">pixel 2</th><td class="num">{value} mm</td>')
    assert "and 56 more columns" in html
