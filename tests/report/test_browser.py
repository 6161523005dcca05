"""The page as a reader meets it, in headless Chromium."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browsing import started
from made_run import edited, made_limit, made_measurement, made_point, made_run
from playwright.sync_api import Browser, Page

from remanence.report import render

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]  # one browser, on one worker

HOSTILE = "<img src=x onerror=alert(1)>\"'&.npz"
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as launched:
        yield launched


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_it(
        html: str, *, width: int = 1200, folded: bool = False, listen: Callable[[Page], None] = lambda page: None
    ) -> Page:
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        listen(page)
        page.goto(path.as_uri())
        if not folded:
            page.evaluate("document.querySelectorAll('details.fold').forEach(fold => { fold.open = true })")
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def html() -> str:
    return render(made_run([HOSTILE, "x" * 300], n=30))


@pytest.fixture(scope="module")
def walk() -> str:
    """Two attacks on an axis, one above its limit, and a measurement."""
    run = made_run(["at one", "at two"], n=30)
    for i in range(2):
        point, limit = made_point("epsilon", float(i + 1), log=True), made_limit(0.5, 0.3 * (i + 1))
        run = edited(run, i, point=point, attack__limit=limit)
    run.results.append(made_measurement("y" * 200))
    return render(run)


def test_quiet_console_and_no_request(open_page: Open, html: str) -> None:
    heard: list[str] = []
    asked: list[str] = []

    def listen(page: Page) -> None:
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("dialog", lambda dialog: heard.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))

    page = open_page(html, listen=listen)
    page.wait_for_load_state("networkidle")
    assert heard == []
    assert {url for url in asked if not url.startswith("data:")} == {page.url}
    broken = "[...document.images].filter(image => !image.naturalWidth || !image.alt).length"
    assert page.evaluate(broken) == 0
    assert page.locator("h2#result-1").inner_text() == HOSTILE


@pytest.mark.parametrize(
    "payload",
    [
        "<script>window.hit = 1</script>",
        "<img src=x onerror='window.hit = 1'>",
        "<svg onload='window.hit = 1'></svg>",
        "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
        "<script src='data:text/javascript,window.hit=1'></script>",
    ],
)
def test_policy_stops_what_escaping_would_miss(open_page: Open, html: str, payload: str) -> None:
    page = open_page(html.replace("<main>", f"<main>{payload}"))
    assert page.evaluate("window.hit") is None
    sort_by(page, "ssim")  # while the page's own script does run
    assert page.locator("th[aria-sort=ascending]").count() == 1


def test_policy_stops_styles_and_remote_pictures(open_page: Open, html: str) -> None:
    payload = "<style>body { display: none }</style><img src='http://127.0.0.1:9/x.png'>"
    blocked: list[str] = []
    page = open_page(
        html.replace("<main>", f"<main>{payload}"),
        listen=lambda page: page.on("console", lambda message: blocked.append(message.text)),
    )
    assert page.locator("h1").is_visible()
    assert len([text for text in blocked if "Content Security Policy" in text]) == 2


def header(page: Page, name: str) -> int:
    names = page.locator("table.sortable").first.locator("thead th").all_inner_texts()
    return [text.strip() for text in names].index(name)


def sort_by(page: Page, name: str) -> None:
    page.locator("table.sortable").first.locator("thead button").nth(header(page, name)).click()


def column(page: Page, name: str) -> list[str]:
    cells = page.locator("table.sortable").first.locator(f"tbody tr td:nth-child({header(page, name) + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


@pytest.mark.parametrize("name", ["record", "candidate", "ssim", "mse", "p"])
def test_numbers_sort_as_numbers_both_ways(open_page: Open, html: str, name: str) -> None:
    page = open_page(html)
    pairs = set(zip(column(page, "record"), column(page, "ssim"), strict=True))
    before = column(page, name)
    values, empty = [float(text) for text in before if text], [""] * before.count("")
    for reverse in (False, True):
        sort_by(page, name)
        after = column(page, name)
        assert [float(text) for text in after if text] == sorted(values, reverse=reverse)
        assert after[len(values) :] == empty  # last, whichever way
    assert set(zip(column(page, "record"), column(page, "ssim"), strict=True)) == pairs  # rows move as a whole


def test_odd_numbers_sort_in_their_place(open_page: Open) -> None:
    run = made_run(n=6, leak=6)
    for row, text in zip(run.rows, ["1e-05", "inf", "nan", "10.5", "9", "-inf"], strict=True):
        row["psnr"] = text
    page = open_page(render(run))
    sort_by(page, "psnr")
    assert column(page, "psnr") == ["-inf", "1e-05", "9", "10.5", "inf", "nan"]


def test_keyboard_sorts_text_and_says_so(open_page: Open, html: str) -> None:
    page = open_page(html)
    index = header(page, "found")
    button = page.locator("table.sortable").first.locator("thead button").nth(index)
    for key, order in (("Enter", "ascending"), ("Space", "descending")):
        button.press(key)
        assert page.locator("table.sortable").first.locator("thead th").nth(index).get_attribute("aria-sort") == order
        assert column(page, "found") == sorted(column(page, "found"), reverse=order == "descending")
    assert page.locator("th[aria-sort=ascending]").count() == 0


@pytest.mark.parametrize("shape", [(1, 8, 8), (20,)])
def test_phone_does_not_scroll_sideways(open_page: Open, shape: tuple[int, ...]) -> None:
    run = made_run([HOSTILE, "x" * 300], n=30, shape=shape)
    run = edited(run, attack__call="Attack(name='" + "y" * 400 + "')")
    page = open_page(render(run), width=375)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    wider = "box => box.scrollWidth > box.clientWidth"
    wide = page.evaluate(f"[...document.querySelectorAll('.box')].filter({wider}).length")
    assert wide > 0  # the tables scroll inside their boxes


def colour(page: Page, selector: str, name: str) -> tuple[float, ...]:
    text = page.locator(selector).first.evaluate("(element, name) => getComputedStyle(element)[name]", name)
    return tuple(float(part) for part in re.findall(r"[\d.]+", text))


def luminance(rgb: tuple[float, ...]) -> float:
    """WCAG 2.2, relative luminance."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_dark_mode_is_dark_and_both_are_readable(open_page: Open, html: str) -> None:
    page = open_page(html)
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ground = colour(page, "html", "backgroundColor")
        grounds.append(luminance(ground))
        for selector, name in (("h1", "color"), (".note", "color"), ("a", "color"), ("svg.figure text", "fill")):
            assert contrast(colour(page, selector, name), ground) >= 4.5, (scheme, selector)
        assert contrast(colour(page, "svg .line.ours", "stroke"), ground) >= 3, scheme
    assert grounds[0] > 0.8 > 0.1 > grounds[1]


def test_print_has_no_controls_and_whole_tables(open_page: Open, html: str) -> None:
    page = open_page(html)
    page.emulate_media(media="print", color_scheme="dark")
    arrow = "getComputedStyle(document.querySelector('.sortable button'), '::after').content"
    assert page.evaluate(arrow) == "none"
    assert page.evaluate("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
    assert luminance(colour(page, "body", "color")) < 0.1  # dark ink, even for a reader who works by night


def test_headings_and_language(open_page: Open, html: str) -> None:
    page = open_page(html)
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.evaluate("document.compatMode") == "CSS1Compat"


def test_charts_load_quietly_and_fit_a_phone(open_page: Open, walk: str) -> None:
    heard: list[str] = []
    page = open_page(walk, width=375, listen=lambda page: page.on("console", lambda said: heard.append(said.text)))
    assert heard == []
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.locator("details summary").first.click()
    assert page.locator("details table").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_charts_have_a_title_and_no_text_outside_or_over_another(open_page: Open, walk: str) -> None:
    page = open_page(walk)
    charts = page.locator("svg.figure")
    assert charts.count() == 2 + 2 * 2 + 3
    assert all(charts.nth(i).locator("> title").text_content() for i in range(charts.count()))
    outside = """[...document.querySelectorAll('svg.figure')].flatMap(svg => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => {
            const own = text.getBoundingClientRect();
            return own.left < box.left - 2 || own.right > box.right + 2 || own.top < box.top - 2;
        }).map(text => text.textContent);
    })"""
    assert page.evaluate(outside) == []
    overlaps = """[...document.querySelectorAll('svg.figure')].flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
            a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3));
    }).length"""
    assert page.evaluate(overlaps) == 0


def test_series_and_flags_can_be_seen_by_day_and_by_night(open_page: Open, walk: str) -> None:
    page = open_page(walk)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ground = colour(page, "html", "backgroundColor")
        assert contrast(colour(page, ".warning", "color"), ground) >= 4.5, scheme
        for selector in (
            *(".line.ours.c0", ".line.ours.c1", ".line.chance"),
            *(".line.limit", ".mark.printed", ".mark.flagged"),
        ):
            assert contrast(colour(page, f"svg {selector}", "stroke"), ground) >= 3, (scheme, selector)
        for i in range(6):
            page.evaluate(f"document.querySelector('svg .bar').setAttribute('class', 'bar ours c{i}')")
            assert contrast(colour(page, "svg .bar", "fill"), ground) >= 3, (scheme, i)


def test_folded_six_results_are_one_screen_of_verdicts_and_under_6000_pixels(open_page: Open) -> None:
    page = open_page(render(made_run([f"experiment {i}" for i in range(6)], n=30)), folded=True)
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    last = page.locator(".verdicts li").last.bounding_box()
    assert last is not None
    assert last["y"] + last["height"] < 900
    assert not page.locator("table.sortable").first.is_visible()


def test_a_link_unfolds_what_it_points_into_and_a_button_everything(open_page: Open, html: str) -> None:
    page = open_page(html.replace('<table class="sortable">', '<table class="sortable" id="inside">', 1), folded=True)
    page.evaluate("location.hash = 'inside'")
    page.wait_for_function("document.getElementById('inside').closest('details').open")
    assert page.locator("details.fold[open]").count() == 1
    page.locator("button.unfold").click()
    assert page.locator("details.fold:not([open])").count() == 0


def test_paper_is_unfolded_and_the_screen_folded_again(open_page: Open, html: str) -> None:
    page = open_page(html, folded=True)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.fold:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.fold[open]").count() == 0
