"""From a run to one self-contained page. It reads records and lays them out; every number in it was computed before.

A record may come from a stranger: every text passes through jinja's escaping, and the page's own security policy lets
nothing run or load but the style and the script inlined here, known by their hashes.
"""

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, final

from markupsafe import Markup

from remanence.experiments.results import Record, Run, redacted, replace_file
from remanence.report.cells import CellView, cell_view
from remanence.report.glossary import matchings_in, metrics_in
from remanence.report.overview import overview
from remanence.report.sentences import judged, verdict
from remanence.report.studies import StudyView, study_view
from remanence.report.words import between, number, percent, score

if TYPE_CHECKING:
    from jinja2 import Environment


def render(run: Run, *, redact: bool = False, title: str = "What can be read back") -> str:
    """The page of a run. With `redact` it keeps counts and curves, and no picture and no line about a single record."""
    if redact:
        run = redacted(run)  # not there, so that no template can show it by mistake
    style, script = (_text(name) for name in ("style.css", "page.js"))
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            cells=[_view(run, index) for index in range(len(run.records))],
            overview=overview(run.records),
            attacks=any(record["kind"] == "attack" for record in run.records),
            personal=bool(run.rows or run.images),
            found=any(record["scores"]["found"]["count"] for record in run.records if "scores" in record),
            claimed=any(record["claims"] for record in run.records),
            data=list(dict.fromkeys(record["release"]["data"] for record in run.records if "release" in record)),
            metrics=metrics_in(run.records),
            matchings=matchings_in(run.records),
        )
    )


@final
@dataclass(frozen=True, kw_only=True)
class RefusalView:
    record: Record
    verdict: str


def _view(run: Run, index: int) -> CellView | StudyView | RefusalView:
    record = run.records[index]
    if record["kind"] == "refused":
        return RefusalView(record=record, verdict=verdict(record))
    return study_view(run, index) if record["kind"] == "study" else cell_view(run, index)


def write_page(path: Path, run: Run, *, redact: bool = False) -> None:
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
    environment.filters.update(number=number, percent=percent, score=score, judged=judged)
    environment.globals.update(between=between)
    return environment


def _policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: an injected script, style, picture or form does nothing."""
    by_hash = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*by_hash)
    return f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'; form-action 'none'"
