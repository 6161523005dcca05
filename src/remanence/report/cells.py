"""One cell as the template wants it: its sentences, figures, gallery and table."""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from markupsafe import Markup
from torch import Tensor

from remanence.errors import BadInput
from remanence.experiments.results import Record, Row, Run
from remanence.report import figures
from remanence.report.glossary import released
from remanence.report.sentences import limit_flag, limit_sentence, notes, verdict
from remanence.report.words import score

MOST_PICTURES, MOST_VALUES, MOST_FEATURES = 12, 6, 12
PARTS = {"truth": "truth", "reconstruction": "reconstruction", "lookalike": "look-alike"}


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table with one row per record; `kind` is how the page's script sorts it."""

    name: str
    title: str
    kind: str


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """One record in the gallery: each part's title with its picture, its values, or nothing."""

    record: str
    label: str
    score: str
    found: bool
    parts: list[tuple[str, Any]]


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    kind: str
    shape: tuple[int, ...]
    features: int
    groups: list[tuple[str, list[Shown]]]  # by what they are: the best, the middle, the worst


@final
@dataclass(frozen=True, kw_only=True)
class CellView:
    """One cell as the template wants it."""

    record: Record
    verdict: str
    released: str
    notes: list[str]
    limit: str
    limit_flag: str
    attack: str
    fields: list[tuple[str, str]]
    interval: Markup
    histogram: Markup
    roc: Markup
    gallery: Gallery | None
    columns: list[Column]
    rows: list[list[str]]


def cell_view(run: Run, index: int) -> CellView:
    record = run.records[index]
    scores, rows = record["scores"], run.rows_of(record["cell"])
    columns = _columns(run, rows)
    attack, fields = _call(record["attack"])
    found = scores["found"]
    return CellView(
        record=record,
        verdict=verdict(record),
        released=released(record),
        notes=notes(record),
        limit=limit_sentence(record),
        limit_flag=limit_flag(record),
        attack=attack,
        fields=fields,
        interval=Markup(figures.interval(*(found[key] or 0.0 for key in ("share", "low", "high", "fpr")))),
        histogram=_histogram(record),
        roc=Markup(figures.roc(scores["roc"]["fpr"], scores["roc"]["tpr"])),
        gallery=_gallery(run, index, rows),
        columns=columns,
        rows=[[_shown(row.get(column.name) or "", column.kind) for column in columns] for row in rows],
    )


def _call(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name and the fields of an attack from its `repr`; no fields where it does not read as a call."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", []
    if not isinstance(tree, ast.Call):
        return "", []
    given = [("", value) for value in tree.args] + [(word.arg or "**", word.value) for word in tree.keywords]
    name = ast.get_source_segment(text, tree.func) or ""
    return name, [(key, ast.get_source_segment(text, value) or "") for key, value in given]


def _histogram(record: Record) -> Markup:
    histogram, metric, up = record["scores"]["histogram"], record["scores"]["primary"], _upwards(record)
    nulls = (record["nulls"][name]["metrics"] for name in ("held_out", "unrelated"))
    levels = [null.get(metric, {}).get("at_1_percent") for null in nulls]
    level = None if None in levels else max(levels) if up else min(levels)  # a record must pass both
    counts = {name: histogram[name] for name in ("records", "held_out", "unrelated")}
    better = "higher is better" if up else "lower is better"
    good = record["scores"]["metrics"][metric]["good"]
    return Markup(figures.histogram(histogram["edges"], counts, metric=metric, better=better, level=level, good=good))


def _upwards(record: Record) -> bool:
    return bool(record["scores"]["metrics"][record["scores"]["primary"]]["higher_is_better"])


def _gallery(run: Run, index: int, rows: Sequence[Row]) -> Gallery | None:
    record, images = run.records[index], _images(run, index, len(rows))
    if not images:
        return None
    shape = tuple(images["truth"].shape[1:])
    kind, most = ("pictures", MOST_PICTURES) if len(shape) == 3 else ("values", MOST_VALUES)
    order = _ranked(rows, record["scores"]["primary"], _upwards(record))
    groups = {
        name: [_entry(rows[i], images, i, record) for i in places] for name, places in _groups(order, most).items()
    }
    return Gallery(kind=kind, shape=shape, features=min(shape[0], MOST_FEATURES), groups=list(groups.items()))


def _groups(order: list[int], most: int) -> dict[str, list[int]]:
    """At most so many of each; of few records, none is shown twice."""
    most = min(most, (len(order) + 1) // 2)
    best, rest, middle = order[:most], order[most:], (len(order) - most) // 2
    typical = order[middle : middle + most] if len(order) >= 3 * most else []
    groups = {"Best": best, "Middle": typical, "Worst": rest[: -most - 1 : -1]}
    return {name: places for name, places in groups.items() if places}


def _images(run: Run, index: int, rows: int) -> dict[str, Tensor]:
    """The pictures or values of a cell, one for each of its rows; nothing where a run holds only part of them."""
    images = {part: run.images[key] for part in PARTS if (key := f"{index}/{part}") in run.images}
    if not rows or not {"truth", "reconstruction"} <= images.keys():
        return {}
    if lengths := {len(image) for image in images.values()} - {rows}:
        raise BadInput(
            f"cell `{run.records[index]['cell']}` has {rows} rows in scores.csv and {lengths.pop()} in "
            "images.safetensors: make the run again"
        )
    return images


def _ranked(rows: Sequence[Row], metric: str, up: bool) -> list[int]:
    """The places of the rows, best score first; a record without a score was not reconstructed at all and is last."""

    def badness(place: int) -> float:
        value = _float(rows[place].get(metric) or "")
        return math.inf if value is None or math.isnan(value) else -value if up else value

    return sorted(range(len(rows)), key=badness)


def _entry(row: Row, images: dict[str, Tensor], place: int, record: Record) -> Shown:
    matched, value = bool(row.get("candidate")), _float(row.get(record["scores"]["primary"]) or "")
    return Shown(
        record=row.get("record", str(place)),
        label=row.get("label", ""),
        score="" if value is None or math.isnan(value) else score(value),
        found=row.get("found") == "yes",
        parts=[
            (PARTS[part], _part(image[place]) if matched or part != "reconstruction" else None)
            for part, image in images.items()
        ],
    )


def _part(x: Tensor) -> str | list[str]:
    return figures.png(x) if x.ndim == 3 else [f"{value:.3f}" for value in x[:MOST_FEATURES].tolist()]


_TITLES = {"p_held_out": "p, held out", "p_unrelated": "p, unrelated"}


def _columns(run: Run, rows: Sequence[Row]) -> list[Column]:
    """The columns in the file's order, without those that belong to other cells and are empty here."""
    columns = []
    for name in dict.fromkeys(name for row in run.rows for name in row):
        values = [value for row in rows if (value := row.get(name))]
        if values and name != "cell":
            kind = "number" if all(_float(value) is not None for value in values) else "text"
            columns.append(Column(name=name, title=_TITLES.get(name, name), kind=kind))
    return columns


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(text: str, kind: str) -> str:
    value = _float(text) if kind == "number" else None
    return text if value is None or text.isdecimal() else f"{value:.4g}"
