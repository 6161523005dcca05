"""The figures of the page, SVG and PNG as text. Colours are classes: the style sheet knows whether it is night."""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from remanence.experiments.results import as_pixels
from remanence.report.svg import WIDTH, drawing, nothing, ticks
from remanence.report.words import number, percent

HEIGHT = 270
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 34, 48
LARGEST = 128  # pixels a side: a picture beyond it is shrunk, or photographs would make the page too heavy to mail


@final
@dataclass(frozen=True, kw_only=True)
class Axes:
    """The plotting box: from values to places in it."""

    low: float
    high: float
    top: float
    log: bool = False

    def x(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, max(value, self.low)))
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - low) / ((high - low) or 1.0)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / (self.top or 1.0)


def histogram(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    *,
    metric: str,
    better: str,
    level: float | None = None,
    good: float | None = None,
) -> str:
    """The scores of the records as bars, those of the nulls as outlines, each as a share of its own group.

    `level` is the value that only 1 % of the null scores reach, `good` what the literature calls a success; each is
    left out where it lies outside the edges."""
    if len(edges) < 2:
        return nothing("Scores of the records and of the nulls")
    shares = {name: _shares(group) for name, group in counts.items()}
    axes = Axes(low=edges[0], high=edges[-1], top=max((s for group in shares.values() for s in group), default=0) or 1)
    parts = [
        _frame(axes, ticks(axes.low, axes.high), f"{metric} ({better})", "share of the scores", number),
        *(f'<path class="{escape(name)}" d="{_steps(axes, edges, group)}"/>' for name, group in shares.items()),
        _level(axes, level),
        _level(axes, good, "good", row=1),
        *(_key(i, name) for i, name in enumerate(counts)),
    ]
    return drawing(f"Distribution of {metric}: the records beside the nulls", "".join(parts), HEIGHT)


def roc(fpr: Sequence[float], tpr: Sequence[float]) -> str:
    """The share found against the false-positive rate on a logarithmic axis: what counts is its left end."""
    title = "Share of records that beat held-out ones at each false-positive rate"
    positive = [value for value in fpr if value > 0]
    if not positive:
        return nothing(title)
    low = min(*positive, 0.1)  # further left there is nothing to tell a rate from zero
    axes = Axes(low=low, high=1.0, top=1.0, log=True)
    chance = [(low ** (1 - i / 40),) * 2 for i in range(41)]
    marks = [mark for power in range(9, -1, -1) if (mark := 10.0**-power) >= low]
    parts = [
        _frame(axes, marks, "false-positive rate, logarithmic", "share of records", percent),
        _level(axes, 0.01),
        f'<path class="chance" d="{_line(axes, chance)}"/>',
        f'<path class="curve" d="{_line(axes, _staircase(fpr, tpr))}"/>',
        _key(0, "curve"),
        _key(1, "chance"),
    ]
    return drawing(title, "".join(parts), HEIGHT)


def interval(share: float, low: float, high: float, chance: float) -> str:
    """A share with its interval on a line from nothing to all; not read aloud, as the words beside it say the same."""

    def x(v: float) -> str:
        return f"{6 + 228 * v:.1f}"

    return (
        '<svg class="interval" viewBox="0 0 240 16" aria-hidden="true">'
        f'<path class="track" d="M{x(0)} 8H{x(1)}"/><path class="chance" d="M{x(chance)} 1V15"/>'
        f'<path class="reach" d="M{x(low)} 8H{x(high)}"/><circle class="share" cx="{x(share)}" cy="8" r="5"/></svg>'
    )


def png(pixels: Tensor) -> str:
    """A record (channels, height, width) as a PNG data URI: its first channel in grey or its first three in colour."""
    from PIL import Image

    eight_bit = pixels if pixels.dtype == torch.uint8 else as_pixels(pixels[None])[0]
    shown = eight_bit[:3].permute(1, 2, 0).numpy() if len(pixels) >= 3 else eight_bit[0].numpy()
    image = Image.fromarray(shown.copy())
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _shares(counts: Sequence[int]) -> list[float]:
    return [count / (sum(counts) or 1) for count in counts]


def _steps(axes: Axes, edges: Sequence[float], shares: Sequence[float]) -> str:
    path = f"M{axes.x(edges[0]):.1f} {axes.y(0):.1f}"
    for share, end in zip(shares, edges[1:], strict=True):
        path += f"V{axes.y(share):.1f}H{axes.x(end):.1f}"
    return path + f"V{axes.y(0):.1f}"


def _staircase(fpr: Sequence[float], tpr: Sequence[float]) -> list[tuple[float, float]]:
    points = sorted(zip(fpr, tpr, strict=True))
    corners = [(after[0], before[1]) for before, after in pairwise(points)]
    return sorted(points + corners)


def _line(axes: Axes, points: Sequence[Sequence[float]]) -> str:
    places = (f"{axes.x(x):.1f} {axes.y(y):.1f}" for x, y in points)
    return "M" + "L".join(dict.fromkeys(places))  # places that fall together are drawn once


_NAMES = {
    "records": "records",
    "held_out": "held out",
    "unrelated": "unrelated",
    "curve": "this attack",
    "chance": "chance",
}


def _key(place: int, name: str) -> str:
    x = LEFT + place * 112
    label = _NAMES.get(name, name)
    mark = f"M{x} 19V9H{x + 16}V19Z" if name == "records" else f"M{x} 14H{x + 18}"
    return f'<path class="{escape(name)}" d="{mark}"/><text x="{x + 23}" y="18">{escape(label)}</text>'


def _level(axes: Axes, level: float | None, name: str = percent(0.01), row: int = 0) -> str:
    if level is None or not axes.low <= level <= axes.high:
        return ""
    x = axes.x(level)
    anchor, at = ("end", x - 4) if x > WIDTH / 2 else ("start", x + 4)
    return (
        f'<path class="level" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        f'<text class="level" x="{at:.1f}" y="{TOP + 11 + 14 * row}" text-anchor="{anchor}">{name}</text>'
    )


def _frame(axes: Axes, at_x: Sequence[float], x_label: str, y_label: str, say: Callable[[object], str]) -> str:
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts = [f'<path class="axis" d="M{LEFT} {axes.y(0):.1f}H{WIDTH - RIGHT}"/>']
    for share in ticks(0, axes.top, 4):
        y = axes.y(share)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent(share)}</text>')
    for value in at_x:
        parts.append(
            f'<text x="{axes.x(value):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{say(value)}</text>'
        )
    parts.append(f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text class="label" transform="translate(12 {centre}) rotate(-90)" text-anchor="middle">{y_label}</text>'
    )
    return "".join(parts)
