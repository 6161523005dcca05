"""What is wrong with the input, said once: the argument, what was expected, what was got, the way out."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real
from typing import Any, get_args

_MOST_NAMES = 12  # in one sentence


class BadInput(ValueError):
    """The caller gave something that cannot be used; the message says what and how to mend it.

    `code` names the kind of fault for machines and tests, such as `shape-mismatch`; `argument` is the argument, field
    or option at fault, where there is one.
    """

    def __init__(self, message: str, *, code: str = "bad-input", argument: str | None = None) -> None:
        super().__init__(message)
        self.code, self.argument = code, argument


class BadModelFile(BadInput):
    """A weights file that is broken, dangerous or not the one expected."""


class NotEnoughKnowledge(BadInput):
    """An attack was given a release that does not show what it needs."""


class Diverged(BadInput):
    """Numbers grew beyond all bounds; the message says which, and at which step."""


def at_least(holder: object, **least: float) -> None:
    """Refuse fields, or entries of them, that are no numbers, below their least, infinite or NaN, and where they are
    annotated as `int` those that are not whole, e.g. ``at_least(self, epochs=0)``."""
    _checked(holder, least, more=False)


def above(holder: object, **bound: float) -> None:
    """The same of fields that may not be the number itself, e.g. ``above(self, clip=0)``."""
    _checked(holder, bound, more=True)


def _checked(holder: object, bounds: Mapping[str, float], *, more: bool) -> None:
    for name, lowest in bounds.items():
        given, counts = getattr(holder, name), _counts(type(holder).__annotations__[name])
        for value in given if isinstance(given, tuple | list) else (given,):
            right = isinstance(value, Integral if counts else Real)
            enough = right and (lowest < value if more else lowest <= value) and value < inf
            if value is not None and not enough:
                kind = "" if right else "a whole number, " if counts else "a number, "
                limit = f"above {lowest:g}" if more else f"{lowest:g} or more"
                raise BadInput(f"`{name}` of {type(holder).__name__} must be {kind}{limit}, got {value!r}")


def between(holder: object, name: str, low: float, high: float, *, count: int | None = None) -> None:
    """Refuse a field that is no tuple of numbers between these two, and of so many."""
    given: object = getattr(holder, name)
    numbers: tuple[Any, ...] = given if isinstance(given, tuple) else ()
    right = all(isinstance(value, Real) and low < float(value) < high for value in numbers)
    if not (isinstance(given, tuple) and right and count in (None, len(given))):
        which = "numbers" if count is None else f"{count} numbers"
        limits = f"above {low:g}" if high == inf else f"between {low:g} and {high:g}"
        raise BadInput(f"`{name}` of {type(holder).__name__} must be a tuple of {which} {limits}, got {given!r}")


def _counts(kind: object) -> bool:
    """Whether this is an annotation with `int` in it."""
    return kind is int or any(map(_counts, get_args(kind)))


def unknown(kind: str, given: str, known: Iterable[str], *, shown_by: str | None = None) -> BadInput:
    """An error that names the nearest known words, e.g. ``unknown("recipe", "demo.digit", RECIPES)``; where there are
    many, the command that shows all stands in their place."""
    names = sorted(known)
    near = _near(given, names)
    hint = f"did you mean {_one_of(near)}? " if near else ""
    told = f"`{shown_by}` shows all" if shown_by and len(names) > _MOST_NAMES else f"known: {_listed(names)}"
    return BadInput(f"unknown {kind} `{given}`: {hint}{told}")


def _near(given: str, names: list[str]) -> list[str]:
    """Those that hold what was given, or else the one that is spelt most like it, or those with such a word in them."""
    if holding := [name for name in names if given and given.casefold() in name.casefold()]:
        return holding
    if close := get_close_matches(given, names, n=1, cutoff=0.5):
        return close
    words = {word for name in names for word in re.findall(r"\w+", name)}
    like = get_close_matches(given, sorted(words), n=1, cutoff=0.75)
    return [name for name in names if like and like[0] in name]


def _one_of(near: list[str]) -> str:
    more = f" or {len(near) - _MOST_NAMES} more" if len(near) > _MOST_NAMES else ""
    return f"{'one of ' if len(near) > 1 else ''}{_quoted(near[:_MOST_NAMES])}{more}"


def _listed(names: list[str]) -> str:
    return _quoted(names) if any("," in name for name in names) else ", ".join(names)


def _quoted(names: list[str]) -> str:
    return "; ".join(f"`{name}`" for name in names)
