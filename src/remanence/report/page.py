"""From a run to one self-contained page. It lays results out; every number in it was computed before.

A result may come from a stranger: every text passes through jinja's escaping, and the page's own security policy lets
nothing run or load but the style and the script inlined here, known by their hashes.
"""

import base64
import hashlib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, final

from markupsafe import Markup

from remanence.experiments.folder import Run, redacted, replace_file
from remanence.experiments.provenance import Hardware
from remanence.experiments.results import Result
from remanence.experiments.words import between, number, percent, score
from remanence.report.attacks import AttackView, attack_view
from remanence.report.figures import Rendered, rendered
from remanence.report.glossary import matchings_in, metrics_in
from remanence.report.overview import overview
from remanence.report.pictures import PictureRow, picture_rows
from remanence.report.sentences import budget_sentence, claim_status, verdict

if TYPE_CHECKING:
    from jinja2 import Environment


def render(run: Run, *, redact: bool = False, title: str = "What can be reconstructed") -> str:
    """The page of a run. With `redact` it keeps counts and curves, and no picture and no line about a single record."""
    if redact:
        run = redacted(run)  # not there, so that no template can show it by mistake
    attacks = [result.attack for result in run.results if result.attack]
    style, script = (_text(name) for name in ("style.css", "page.js"))
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            views=[_view(run, index) for index in range(len(run.results))],
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


def _view(run: Run, index: int) -> ResultView:
    result = run.results[index]
    return ResultView(
        result=result,
        verdict=verdict(result),
        budget=budget_sentence(result),
        attack=attack_view(run, index, result.attack) if result.attack else None,
        figures=[rendered(figure) for figure in result.figures],
        pictures=picture_rows(run, index),
        printed={claim.quantity.casefold(): claim.printed for claim in result.claims},
        hardware={field.name: getattr(result.hardware, field.name) for field in fields(Hardware)},
    )


def write_page(path: Path, run: Run, *, redact: bool = False) -> None:
    """Write the page of `run` to `path`."""
    page = render(run, redact=redact)
    replace_file(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))


def _text(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("remanence.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, score=score, claim_status=claim_status)
    environment.globals.update(between=between)
    return environment


def _policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: an injected script, style, picture or form does nothing."""
    by_hash = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*by_hash)
    return f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'; form-action 'none'"
