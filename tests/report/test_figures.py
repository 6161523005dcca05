"""The figures are well-formed, put things where the numbers say, and escape what they are given."""

import base64
import io
import math
import re
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from remanence.report import figures, words
from remanence.report.svg import WIDTH, log_ticks, ticks

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
COUNTS = {"records": [0, 1, 3], "held_out": [6, 2, 0], "unrelated": [4, 0, 0]}


def made_histogram(metric: str = "ssim", level: float | None = 0.5) -> str:
    return figures.histogram([0, 1, 2, 3], COUNTS, metric=metric, better="higher is better", level=level)


def numbers(path: str) -> list[float]:
    return [float(found) for found in re.findall(r"[\d.]+", path)]


def path_of(svg: str, name: str) -> str:
    return re.findall(rf'<path class="{name}" d="([^"]+)"/>', svg)[0]


@pytest.mark.parametrize(
    "svg",
    [
        made_histogram(),
        made_histogram(metric="<b>&\"'"),
        figures.histogram([], {"records": []}, metric="ssim", better="lower is better"),
        figures.histogram([0.5, 0.5], {"records": [0]}, metric="ssim", better="lower is better"),
        figures.roc([0.0, 0.01, 1.0], [0.2, 0.5, 1.0]),
        figures.roc([0.5], [0.5]),
        figures.roc([], []),
        figures.roc([0.0], [1.0]),
        figures.interval(0.5, 0.3, 0.7, 0.01),
    ],
)
def test_figures_are_well_formed(svg: str) -> None:
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "style=" not in svg  # the page's policy would refuse it
    assert "nan" not in svg


def test_histogram_draws_shares_of_each_group() -> None:
    base, top = figures.HEIGHT - figures.BOTTOM, figures.TOP
    heights = [base - float(y) for y in re.findall(r"V([\d.]+)", path_of(made_histogram(), "records"))]
    full = base - top  # the tallest bar of all: every unrelated score is in the first bin
    assert heights == pytest.approx([0, full * 1 / 4, full * 3 / 4, 0], abs=0.1)


def test_histogram_leaves_out_a_level_beyond_its_edges() -> None:
    assert 'class="level"' in made_histogram()
    assert 'class="level"' not in made_histogram(level=7.0)
    assert 'class="level"' not in made_histogram(level=None)


def test_histogram_marks_what_counts_as_good() -> None:
    drawn = figures.histogram([0, 1, 2, 3], COUNTS, metric="ssim", better="higher is better", good=1.5)
    (x,) = {float(x) for x in re.findall(r'<path class="level" d="M([\d.]+) ', drawn)}
    assert x == pytest.approx((figures.LEFT + WIDTH - figures.RIGHT) / 2)
    assert ">good</text>" in drawn


def test_histogram_names_metric_direction_and_groups() -> None:
    texts = [element.text for element in ElementTree.fromstring(made_histogram()).iter() if element.text]
    assert {"ssim (higher is better)", "share of the scores", "records", "held out", "unrelated"} <= set(texts)


def test_roc_has_a_logarithmic_axis() -> None:
    svg = figures.roc([0.0, 0.001, 0.01, 1.0], [0.0, 0.25, 0.5, 1.0])
    places = numbers(path_of(svg, "curve"))
    left, right = figures.LEFT, WIDTH - figures.RIGHT
    third = left + (right - left) * (math.log10(0.01) - math.log10(0.001)) / 3
    assert any(x == pytest.approx(third, abs=0.1) for x in places[::2])
    assert min(places[::2]) == pytest.approx(left)
    assert max(places[::2]) == pytest.approx(right)


def test_roc_of_many_points_stays_small() -> None:
    rates = [i / 20_000 for i in range(1, 20_001)]
    assert len(figures.roc(rates, rates)) < 60_000


@pytest.mark.parametrize("channels", [1, 3])
def test_png_holds_the_pixels(channels: int) -> None:
    pixels = torch.randint(0, 256, (channels, 5, 7), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    image = opened(figures.png(pixels))
    assert image.size == (7, 5)
    values = torch.tensor(list(image.tobytes()), dtype=torch.uint8).reshape(5, 7, channels)
    assert torch.equal(values.permute(2, 0, 1), pixels)


def test_png_takes_floats_and_other_channels_and_shrinks_photographs() -> None:
    assert opened(figures.png(torch.ones(1, 2, 2))).tobytes() == b"\xff" * 4
    assert opened(figures.png(torch.zeros(2, 4, 4, dtype=torch.uint8))).mode == "L"
    assert opened(figures.png(torch.zeros(5, 4, 4, dtype=torch.uint8))).mode == "RGB"
    assert opened(figures.png(torch.zeros(3, 400, 200, dtype=torch.uint8))).size == (64, 128)


def opened(uri: str) -> Image.Image:
    head, body = uri.split(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, DASH), (0.12345, "0.123"), (-2.5, f"{MINUS}2.5"), (12345, "12,345"), (500, "500"), ("odd", "odd")],
)
def test_number(value: object, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.500"), (99.96, "100"), (3, "3"), (0.0, "0"), (None, DASH)])
def test_score_keeps_its_zeros(value: object, text: str) -> None:
    assert words.score(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.875, "88"), (0.01, "1"), (0.001, "0.1"), (0.0625, "6.2"), (0.996, "99.6"), (1.0, "100"), (0, "0")],
)
def test_percent(share: float, text: str) -> None:
    assert words.percent(share) == f"{text}\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.3, 0.45), (0, 0.0021), (12, 40_000), (3, 3)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)


@pytest.mark.parametrize(("low", "high"), [(1, 100), (0.002, 0.03), (1e-9, 1e3), (3, 4), (1, 1000)])
def test_marks_of_a_logarithmic_axis_are_few_and_inside(low: float, high: float) -> None:
    found = log_ticks(low, high)
    assert len(found) <= 9
    assert all(low * 0.99 <= value <= high * 1.01 for value in found)
    assert all(f"{value:e}"[0] in "1235" for value in found)
