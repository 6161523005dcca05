"""From a run to one self-contained page. It lays results out; every number in it was computed before."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import final

from remanence.disk import replace_file
from remanence.experiments.folder import Run, redacted
from remanence.experiments.provenance import Hardware
from remanence.experiments.results import Result
from remanence.report.attacks import AttackView, attack_view
from remanence.report.document import environment, page_parts
from remanence.report.figures import Rendered, rendered
from remanence.report.glossary import matchings_in, metrics_in
from remanence.report.limits import Limits, limits_of
from remanence.report.overview import overview
from remanence.report.pictures import PictureRow, picture_rows
from remanence.report.sentences import budget_sentence, verdict


def render(run: Run, *, redact: bool = False, title: str = "What can be reconstructed") -> str:
    """The page of a run. With `redact` it keeps counts and curves, and no picture and no line about a single record."""
    if redact:
        run = redacted(run)  # not there, so that no template can show it by mistake
    attacks, limits = [result.attack for result in run.results if result.attack], limits_of(run)
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            **page_parts(),
            views=[_view(run, index, limits) for index in range(len(run.results))],
            overview=overview(run.results),
            attacks=bool(attacks),
            personal=bool(run.rows or run.images),
            found=any(attack.scores.found.count for attack in attacks),
            claimed=any(result.claims for result in run.results),
            data=list(dict.fromkeys(attack.release.data for attack in attacks)),
            metrics=metrics_in(run.results),
            matchings=matchings_in(run.results),
        )
    )


@final
@dataclass(frozen=True, kw_only=True)
class ResultView:
    """One result as the template wants it."""

    result: Result
    verdict: str
    budget: str
    attack: AttackView | None
    figures: list[Rendered]
    pictures: list[PictureRow]
    printed: dict[str, float | None]  # by the name of the measure
    hardware: dict[str, object]


def _view(run: Run, index: int, limits: Limits) -> ResultView:
    result = run.results[index]
    return ResultView(
        result=result,
        verdict=verdict(result),
        budget=budget_sentence(result),
        attack=attack_view(run, index, result.attack, limits) if result.attack else None,
        figures=[rendered(figure) for figure in result.figures],
        pictures=picture_rows(run, index, limits),
        printed={claim.quantity.casefold(): claim.printed for claim in result.claims},
        hardware={field.name: getattr(result.hardware, field.name) for field in fields(Hardware)},
    )


def write_page(path: Path, run: Run, *, redact: bool = False) -> None:
    """Write the page of `run` to `path`."""
    page = render(run, redact=redact)
    replace_file(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
