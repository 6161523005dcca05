"""What every page of ours is made with: escaping templates, and a policy that lets nothing else run or load.

A result may come from a stranger: every text passes through jinja's escaping, and the page's own security policy lets
nothing run or load but the style and the script inlined here, known by their hashes.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from remanence.experiments.words import between, number, percent, score
from remanence.report.sentences import claim_status

if TYPE_CHECKING:
    from jinja2 import Environment


def page_parts(*styles: tuple[str, str]) -> dict[str, Markup | str]:
    """`style`, `script` and `policy` of a page; `styles` are further style sheets, each a package and a file of it."""
    script = _text("remanence.report", "page.js")
    style = "\n".join(_text(*each) for each in (("remanence.report", "style.css"), *styles))
    return {"style": Markup(style), "script": Markup(script), "policy": _policy(style, script)}


@cache
def environment(*packages: str) -> "Environment":
    """The templates of the `packages`, then ours."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(each) for each in (*packages, "remanence.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, percent=percent, score=score, claim_status=claim_status)
    made.globals.update(between=between)
    return made


def _text(package: str, name: str) -> str:
    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: an injected script, style, picture or form does nothing."""
    by_hash = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*by_hash)
    return f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'; form-action 'none'"
