"""What is wrong with the input, said once: the argument, what was expected, what was got, the way out."""

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):
    """The caller gave something that cannot be used; the message says what and how to mend it."""


class BadModelFile(BadInput):
    """A weights file that is broken, dangerous or not the one expected."""


class NotEnoughKnowledge(BadInput):
    """An attack was given a release that does not show what it needs."""


class Diverged(BadInput):
    """Numbers grew beyond all bounds; the message says which, and at which step."""


def unknown(kind: str, given: str, known: Iterable[str]) -> BadInput:
    """An error that names the nearest known word, e.g. ``unknown("recipe", "demo.digit", RECIPES)``."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return BadInput(f"unknown {kind} `{given}`: {hint}known: {', '.join(names)}")
