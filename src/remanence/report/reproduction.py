"""One page of all claims of the papers: the table, printed against measured, the figures with ours, the galleries."""

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from remanence.experiments.outcome import Figure, Series
from remanence.report.document import environment, page_parts
from remanence.report.figures import Rendered, rendered
from remanence.report.overview import overview
from remanence.reproduction import STATUSES, Archive, Decided, Paper, Printed, total_minutes
from remanence.reproduction.words import budget_words, contradiction_words, number_words, printed_words

MAX_GALLERY = 2**20  # bytes of a picture
_PNG = b"\x89PNG\r\n\x1a\n"


@final
@dataclass(frozen=True, kw_only=True)
class Picture:
    """A committed gallery."""

    name: str
    uri: str


@final
@dataclass(frozen=True, kw_only=True)
class PaperView:
    """A paper as the template wants it."""

    paper: Paper
    decided: list[Decided]
    counts: list[int]  # of each status
    figures: list[Rendered]
    galleries: list[Picture]

    @property
    def contradictions(self) -> list[Decided]:
        return [each for each in self.decided if each.row.status == "contradicted" and each.claim.contradiction]


def render_reproduction(
    decided: Sequence[Decided], papers: Sequence[Paper], archive: Archive, *, galleries: Path
) -> str:
    """The page of these claims; `galleries` is the folder of the results, which holds pictures beside them."""
    views = [_view(paper, decided, archive, galleries) for paper in papers]
    made = environment()
    words = {
        "budget": budget_words,
        "observed": contradiction_words,
        "number": number_words,
        "printed": printed_words,
    }
    counts = Counter(each.row.status for each in decided)
    return made.get_template("reproduction.html").render(
        **page_parts(("remanence.report", "reproduction.css")),
        views=[view for view in views if view.decided],
        statuses=STATUSES,
        counts=[counts[status] for status in STATUSES],
        total=len(decided),
        hours=total_minutes(decided, archive) / 60,
        plots=[rendered(figure) for figure in against(decided)],
        words=words,
    )


def _view(paper: Paper, decided: Sequence[Decided], archive: Archive, folder: Path) -> PaperView:
    mine = [each for each in decided if each.row.paper == paper.name]
    counts = Counter(each.row.status for each in mine)
    return PaperView(
        paper=paper,
        decided=mine,
        counts=[counts[status] for status in STATUSES],
        figures=list(_figures(paper, archive)),
        galleries=list(_galleries(folder / paper.name)),
    )


def against(decided: Sequence[Decided]) -> Iterator[Figure]:
    """Ours against every printed number, by what is better; errors and scores on logarithmic axes."""
    titles = {
        False: "Errors: better below the line",
        True: "Scores: better above it",
        None: "Others: as near as can be",
    }
    for up, title in titles.items():
        every = [each for each in decided if _has_number(each, up)]
        mine = [each for each in every if up is None or (each.row.ours or 0.0) > 0]
        values = [value for each in mine for value in (each.row.printed, each.row.ours) if value]
        if not values:
            continue
        series = [_points(paper, mine) for paper in dict.fromkeys(each.row.paper for each in mine)]
        diagonal = (min(values), max(values))
        absent = len(every) - len(mine)  # from logarithmic axes
        yield Figure(
            title=f"{title}; {absent} that {'is' if absent == 1 else 'are'} not positive not shown"
            if absent
            else title,
            x_label="printed",
            y_label="ours",
            series=(*series, Series(name="as printed", x=diagonal, y=diagonal, role="chance")),
            kind="points",
            log_x=up is not None,
            log_y=up is not None,
        )


def _has_number(each: Decided, up: bool | None) -> bool:
    criterion, measured = each.claim.criterion, each.row.ours is not None
    return isinstance(criterion, Printed) and criterion.claim.higher_is_better is up and measured


def _points(paper: str, decided: Sequence[Decided]) -> Series:
    rows = [each.row for each in decided if each.row.paper == paper]
    return Series(
        name=paper,
        x=tuple(row.printed or 0.0 for row in rows),
        y=tuple(row.ours for row in rows),
        low=tuple(row.low for row in rows),
        high=tuple(row.high for row in rows),
    )


def _figures(paper: Paper, archive: Archive) -> Iterator[Rendered]:
    """The figures of every recipe that the claims name, from the first of its files, without tables of their values."""
    for recipe in dict.fromkeys(recipe for claim in paper.claims for recipe in claim.recipes):
        files = [results for results in archive.files.values() if any(each.recipe == recipe for each in results)]
        results = [each for each in (files[0] if files else ()) if each.recipe == recipe]
        swept = overview(results)
        shown = [(figure, "") for figure in (swept.axes if swept else [])]
        shown += [(rendered(figure), result.label) for result in results for figure in result.figures]
        for figure, label in shown:
            title = f"{recipe.removeprefix(f'{paper.name}.')}: {figure.title}"
            yield replace(figure, title=f"{title} ({label})" if label else title, note="", header=[], rows=[])


def _galleries(folder: Path) -> Iterator[Picture]:
    for path in sorted(folder.glob("*-gallery.png")):
        content = path.read_bytes()
        if content.startswith(_PNG) and len(content) <= MAX_GALLERY:
            uri = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
            yield Picture(name=path.stem.removesuffix("-gallery"), uri=uri)
