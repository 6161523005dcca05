"""One study as the template wants it: its measures, figures and pictures."""

from dataclasses import dataclass
from typing import final

from remanence.experiments.results import Record, Run
from remanence.report.drawn import Drawn, drawn
from remanence.report.figures import png
from remanence.report.sentences import verdict

MOST_PICTURES = 12


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """The first pictures of one name, and how many there are."""

    name: str
    count: int
    uris: list[str]


@final
@dataclass(frozen=True, kw_only=True)
class StudyView:
    record: Record
    verdict: str
    figures: list[Drawn]
    pictures: list[Row]
    printed: dict[str, float | None]  # by the name of the measure


def study_view(run: Run, index: int) -> StudyView:
    record = run.records[index]
    return StudyView(
        record=record,
        verdict=verdict(record),
        figures=[drawn(figure) for figure in record["figures"]],
        pictures=_pictures(run, index),
        printed={claim["quantity"].casefold(): claim["printed"] for claim in record["claims"]},
    )


def _pictures(run: Run, index: int) -> list[Row]:
    named = {key.partition("/")[2]: x for key, x in run.images.items() if key.partition("/")[0] == str(index)}
    return [
        Row(name=name, count=len(x), uris=[png(picture) for picture in x[:MOST_PICTURES]])
        for name, x in named.items()
        if x.ndim == 4
    ]
