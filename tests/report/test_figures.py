"""The figures of an attack show its numbers; pictures hold the pixels; numbers are written for a reader."""

import base64
import io
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from remanence.experiments import words
from remanence.experiments.results import Histogram
from remanence.metrics import Roc
from remanence.report import figures
from remanence.report.charts import LEFT, RIGHT, WIDTH
from remanence.report.pictures import png

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
COUNTS = Histogram(edges=(0, 1, 2, 3), records=(0, 1, 3), held_out=(6, 2, 0), unrelated=(4, 0, 0))


def made_histogram(counts: Histogram = COUNTS, **levels: float) -> str:
    return figures.histogram(counts, metric="ssim", better="higher is better", levels=levels)


def made_roc(fpr: Any, tpr: Any) -> str:
    return figures.roc(Roc(fpr=tuple(fpr), tpr=tuple(tpr), tpr_at_1_percent=None, tpr_at_01_percent=None))


def points(svg: str, name: str) -> list[tuple[float, float]]:
    path = re.findall(rf'<path class="{name}" d="([^"]+)"/>', svg)[0]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


@pytest.mark.parametrize(
    "svg",
    [
        made_histogram(),
        made_histogram(Histogram(edges=(0.5,), records=(), held_out=(), unrelated=())),
        made_histogram(Histogram(edges=(0.5, 0.5), records=(0,), held_out=(0,), unrelated=(0,))),
        made_roc([0.0, 0.01, 1.0], [0.2, 0.5, 1.0]),
        made_roc([0.5], [0.5]),
        made_roc([], []),
        made_roc([0.0], [1.0]),
        figures.interval(0.5, 0.3, 0.7, 0.01),
    ],
)
def test_figures_are_well_formed(svg: str) -> None:
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "style=" not in svg  # the page's policy would refuse it
    assert "nan" not in svg


def test_a_histogram_outlines_fractions_of_each_group() -> None:
    heights = [y for _, y in points(made_histogram(), "line ours c0")]
    base, top = heights[0], min(y for _, y in points(made_histogram(), "line chance d1"))  # all unrelated in one bin
    fractions = [(base - y) / (base - top) for y in heights]
    assert fractions == pytest.approx([0, 0, 0.25, 0.25, 0.75, 0.75, 0], abs=0.01)
    assert ">good</text>" in made_histogram(good=1.5)
    texts = {element.text for element in ElementTree.fromstring(made_histogram()).iter() if element.text}
    assert {"ssim (higher is better)", "records", "held out", "unrelated"} <= texts


def test_a_roc_curve_has_a_logarithmic_axis_and_stays_small() -> None:
    found = points(made_roc([0.0, 0.001, 0.01, 1.0], [0.0, 0.25, 0.5, 1.0]), "line ours c0")
    left, right = LEFT + 8, WIDTH - RIGHT - 8
    assert any(x == pytest.approx(left + (right - left) / 3, abs=0.1) for x, _ in found)
    assert (min(x for x, _ in found), max(x for x, _ in found)) == pytest.approx((left, right))
    rates = [i / 20_000 for i in range(1, 20_001)]
    assert len(made_roc(rates, rates)) < 60_000


@pytest.mark.parametrize("channels", [1, 3])
def test_png_holds_the_pixels(channels: int) -> None:
    pixels = torch.randint(0, 256, (channels, 5, 7), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    image = opened(png(pixels))
    assert image.size == (7, 5)
    values = torch.tensor(list(image.tobytes()), dtype=torch.uint8).reshape(5, 7, channels)
    assert torch.equal(values.permute(2, 0, 1), pixels)


def test_png_takes_floats_and_other_channels_and_shrinks_photographs() -> None:
    assert opened(png(torch.ones(1, 2, 2))).tobytes() == b"\xff" * 4
    assert opened(png(torch.zeros(2, 4, 4, dtype=torch.uint8))).mode == "L"
    assert opened(png(torch.zeros(5, 4, 4, dtype=torch.uint8))).mode == "RGB"
    assert opened(png(torch.zeros(3, 400, 200, dtype=torch.uint8))).size == (64, 128)


def opened(uri: str) -> Image.Image:
    head, body = uri.split(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


@pytest.mark.parametrize(
    ("written", "cases"),
    [
        (words.number, {0.12345: "0.123", -2.5: f"{MINUS}2.5", 12345: "12,345", 500: "500", "odd": "odd", None: DASH}),
        (words.score, {0.5: "0.500", 99.96: "100", 3: "3", 0.0: "0", None: DASH}),
        (
            lambda fraction: words.percent(fraction).removesuffix("\N{NO-BREAK SPACE}%"),
            {0.875: "88", 0.01: "1", 0.001: "0.1", 0.0625: "6.2", 0.996: "99.6", 1.0: "100", 0: "0"},
        ),
    ],
    ids=["number", "score", "percent"],
)
def test_numbers_are_written_for_a_reader(written: Callable[[Any], str], cases: dict[Any, str]) -> None:
    assert {value: written(value) for value in cases} == cases
