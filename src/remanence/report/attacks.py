"""The attack of a result as the template wants it: its sentences, figures, gallery and table."""

import ast
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from markupsafe import Markup, escape
from torch import Tensor

from remanence.errors import BadInput
from remanence.experiments.folder import Row, Run
from remanence.experiments.results import AttackSummary
from remanence.experiments.words import percent, score
from remanence.report import figures
from remanence.report.glossary import released
from remanence.report.limits import Limits
from remanence.report.pictures import png
from remanence.report.sentences import POOLED, limit_flag, limit_sentence, notes

MAX_VALUES, MAX_FEATURES = 6, 12
MAX_CALL = 20_000  # characters
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
    facts: list[tuple[str, str]] = field(default_factory=list)  # what else is known of it, by name


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    kind: str
    shape: tuple[int, ...]
    features: int
    groups: list[tuple[str, list[Shown]]]  # by what they are: the best, the middle, the worst


@final
@dataclass(frozen=True, kw_only=True)
class AttackView:
    """An attack as the template wants it."""

    summary: AttackSummary
    released: str
    notes: list[str]
    limit: str
    limit_flag: str
    name: str
    fields: list[tuple[str, str]]
    interval: Markup
    histogram: Markup
    roc: Markup
    gallery: Gallery | None
    columns: list[Column]
    count: int  # of all rows
    rows: list[Markup]


def attack_view(run: Run, index: int, attack: AttackSummary, limits: Limits) -> AttackView:
    """The attack of the result at `index`."""
    scores, rows = attack.scores, run.rows_of(run.results[index].label)
    shown, (name, fields) = rows[: limits.rows], parse_call(attack.call)
    columns = _columns(run, shown)
    found = scores.found.fraction
    return AttackView(
        summary=attack,
        released=released(attack),
        notes=notes(attack),
        limit=limit_sentence(attack),
        limit_flag=limit_flag(attack),
        name=name,
        fields=fields,
        interval=Markup(figures.interval(found.value, found.low, found.high, _by_chance(attack))),
        histogram=_histogram(attack),
        roc=Markup(figures.roc(scores.roc)),
        gallery=_gallery(run, index, attack, rows, limits),
        columns=columns,
        count=len(rows),
        rows=[_cells(row, columns) for row in shown],
    )


def _by_chance(attack: AttackSummary) -> float:
    """The fraction of the records that counts as found by chance."""
    test = attack.scores.test
    return POOLED if test is None else test.false / max(1, test.subjects or attack.scores.records)


def parse_call(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name and the fields of an attack from its `repr`; no fields where it does not read as a call."""
    if len(text) > MAX_CALL:
        return "", []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", []
    if not isinstance(tree, ast.Call):
        return "", []
    given = [("", value) for value in tree.args] + [(word.arg or "**", word.value) for word in tree.keywords]
    name = ast.get_source_segment(text, tree.func) or ""
    return name, [(key, ast.get_source_segment(text, value) or "") for key, value in given]


def _histogram(attack: AttackSummary) -> Markup:
    scores, up = attack.scores, _upwards(attack)
    nulls = [null.metrics[scores.primary] for null in (attack.nulls.held_out, attack.nulls.unrelated)]
    strict = [null.at_1_percent for null in nulls if null.at_1_percent is not None]
    levels = {}
    if len(strict) == len(nulls):  # a record must pass both
        levels[percent(POOLED)] = max(strict) if up else min(strict)
    if (good := scores.metrics[scores.primary].good) is not None:
        levels["good"] = good
    better = "higher is better" if up else "lower is better"
    return Markup(figures.histogram(scores.histogram, metric=scores.primary, better=better, levels=levels))


def _upwards(attack: AttackSummary) -> bool:
    return attack.scores.metrics[attack.scores.primary].higher_is_better


def _gallery(run: Run, index: int, attack: AttackSummary, rows: Sequence[Row], limits: Limits) -> Gallery | None:
    images, metric = _images(run, index, len(rows)), attack.scores.primary
    if not images:
        return None
    shape = tuple(images["truth"].shape[1:])
    kind = "pictures" if len(shape) == 3 else "values"
    count = limits.pictures if kind == "pictures" else min(limits.pictures, MAX_VALUES)
    order = _ranked(rows, metric, _upwards(attack))
    groups = [
        (name, [_entry(rows[i], images, i, metric, limits.side) for i in chosen])
        for name, chosen in _groups(order, count).items()
    ]
    return Gallery(kind=kind, shape=shape, features=min(shape[0], MAX_FEATURES), groups=groups)


def _groups(order: list[int], count: int) -> dict[str, list[int]]:
    """The best, the middle and the worst, at most `count` of each; of few records, none is shown twice."""
    count = min(count, (len(order) + 1) // 2)
    best, others, middle = order[:count], order[count:], (len(order) - count) // 2
    typical = order[middle : middle + count] if len(order) >= 3 * count else []
    groups = {"Best": best, "Middle": typical, "Worst": others[: -count - 1 : -1]}
    return {name: chosen for name, chosen in groups.items() if chosen}


def _images(run: Run, index: int, rows: int) -> dict[str, Tensor]:
    """The pictures or values of the records, one for each row; nothing where a run holds only part of them."""
    images = {part: run.images[key] for part in PARTS if (key := f"{index}/{part}") in run.images}
    if not rows or not {"truth", "reconstruction"} <= images.keys():
        return {}
    if len({image.shape[1:] for image in images.values()}) > 1:
        message = f"the pictures of experiment `{run.results[index].label}` differ in their shape: make the run again"
        raise BadInput(message, code="damaged-file")
    if lengths := {len(image) for image in images.values()} - {rows}:
        raise BadInput(
            f"experiment `{run.results[index].label}` has {rows} rows in scores.csv and {lengths.pop()} in "
            "images.safetensors: make the run again",
            code="damaged-file",
        )
    return images


def _ranked(rows: Sequence[Row], metric: str, up: bool) -> list[int]:
    """The indices of the rows, best score first; a record without a score was not reconstructed and is last."""

    def badness(index: int) -> float:
        value = _float(rows[index].get(metric) or "")
        return math.inf if value is None or math.isnan(value) else -value if up else value

    return sorted(range(len(rows)), key=badness)


def _entry(row: Row, images: dict[str, Tensor], index: int, metric: str, side: int) -> Shown:
    matched, value = bool(row.get("candidate")), _float(row.get(metric) or "")
    return Shown(
        record=row.get("record", str(index)),
        label=row.get("label", ""),
        score="" if value is None or math.isnan(value) else score(value),
        found=row.get("found") == "yes",
        parts=[
            (PARTS[part], _part(image[index], side) if matched or part != "reconstruction" else None)
            for part, image in images.items()
        ],
    )


def _part(x: Tensor, side: int) -> str | list[str]:
    return png(x, side) if x.ndim == 3 else [f"{value:.3f}" for value in x[:MAX_FEATURES].tolist()]


_TITLES = {"recognised_by": "recognised by"}


def _columns(run: Run, rows: Sequence[Row]) -> list[Column]:
    """The columns in the file's order, without those that belong to other experiments and are empty here."""
    columns = []
    for name in run.columns:
        values = [value for row in rows if (value := row.get(name))]
        if values and name != "experiment":
            kind = "number" if all(_float(value) is not None for value in values) else "text"
            columns.append(Column(name=name, title=_TITLES.get(name, name), kind=kind))
    return columns


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cells(row: Row, columns: Sequence[Column]) -> Markup:
    """The cells of one row; here and not in the template, as there may be very many."""
    shown = ((_shown(row.get(column.name) or "", column.kind), column.kind) for column in columns)
    return Markup("".join(f"<td{' class=num' if kind == 'number' else ''}>{escape(text)}</td>" for text, kind in shown))


def _shown(text: str, kind: str) -> str:
    value = _float(text) if kind == "number" else None
    return text if value is None or text.isdecimal() else f"{value:.4g}"
