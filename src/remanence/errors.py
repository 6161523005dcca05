"""What is wrong with the input, said once: the argument, what was expected, what was got, the way out."""

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf


class BadInput(ValueError):
    """The caller gave something that cannot be used; the message says what and how to mend it."""


class BadModelFile(BadInput):
    """A weights file that is broken, dangerous or not the one expected."""


class NotEnoughKnowledge(BadInput):
    """An attack was given a release that does not show what it needs."""


class Diverged(BadInput):
    """Numbers grew beyond all bounds; the message says which, and at which step."""


def at_least(whole: object, **least: float) -> None:
    """Refuse fields that are below their least number, infinite or NaN, e.g. ``at_least(self, epochs=0)``."""
    for name, lowest in least.items():
        given = getattr(whole, name)
        if given is not None and not lowest <= given < inf:
            raise BadInput(f"`{name}` of {type(whole).__name__} must be {lowest:g} or more, got {given}")


def unknown(kind: str, given: str, known: Iterable[str]) -> BadInput:
    """An error that names the nearest known word, e.g. ``unknown("recipe", "demo.digit", RECIPES)``."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return BadInput(f"unknown {kind} `{given}`: {hint}known: {', '.join(names)}")
