"""The errors of the package, and checks of fields that raise them.

A message names the argument, what was expected, what was got and the way out; a code names the kind of fault. It may
hold a stranger's words, from a file or its name: no message steers a terminal, and none is longer than a screen.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real
from typing import Any, ClassVar, get_args

MAX_MESSAGE = 1000  # characters
MAX_NAME = 200  # characters of a name that comes from a file
_MAX_NAMES = 12  # in one sentence
_MAX_LISTED = 400  # characters of names in one sentence
_MAX_COMPARED = 2000  # names, and characters of one, that spellings are compared with


def printable(text: str, limit: int | None = None) -> str:
    """A stranger's words for a line of ours: control characters, line breaks, marks that turn the direction of writing
    and halves of characters are escaped; of one longer than `limit` the middle is left out."""
    if limit is not None:
        text = _shortened(text, limit)
    if not (text.isascii() and text.isprintable()):
        text = "".join(each if _shows(each) else each.encode("unicode_escape").decode("ascii") for each in text)
    return text if limit is None else _shortened(text, limit)


def _shows(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # such as a no-break space


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = limit // 3  # where a message says the way out
    return f"{text[: limit - end - 5]} ... {text[-end:] if end else ''}"


class BadInput(ValueError):
    """The caller gave something that cannot be used; the message says what, and how to correct it.

    `code` names the kind of fault for machines and tests, such as `shape-mismatch`; `argument` is the argument, field
    or option at fault, where there is one.
    """

    default_code: ClassVar[str] = "bad-input"

    def __init__(self, message: str, *, code: str | None = None, argument: str | None = None) -> None:
        super().__init__(printable(message, MAX_MESSAGE))
        self.code, self.argument = code or self.default_code, argument


class BadModelFile(BadInput):
    """A weights file that is broken, dangerous or not the one expected."""

    default_code = "damaged-file"


class NotEnoughKnowledge(BadInput):
    """An attack was given a release that lacks knowledge it needs."""

    default_code = "not-enough-knowledge"


class Diverged(BadInput):
    """A training or a search diverged to infinite or NaN values; the message says which, and at which step."""

    default_code = "diverged"


def check_min(holder: object, **minimum: float) -> None:
    """Refuse numeric fields of `holder`, or entries of a field that is a tuple or list, that are below their minimum.

    Values that are no numbers, infinite or NaN are refused too, and fractions where the field is annotated with `int`.
    None passes. Example: ``check_min(self, epochs=0)``.
    """
    _check_bounds(holder, minimum, strict=False)


def check_above(holder: object, **bound: float) -> None:
    """Refuse what `check_min` refuses, and the bound itself, e.g. ``check_above(self, clip=0)``."""
    _check_bounds(holder, bound, strict=True)


def _check_bounds(holder: object, bounds: Mapping[str, float], *, strict: bool) -> None:
    for name, low in bounds.items():
        given, integral = getattr(holder, name), _has_int(type(holder).__annotations__[name])
        for value in given if isinstance(given, tuple | list) else (given,):
            numeric = isinstance(value, Integral if integral else Real)
            in_range = numeric and (low < value if strict else low <= value) and value < inf
            if value is not None and not in_range:
                kind = "" if numeric else "a whole number, " if integral else "a number, "
                limit = f"above {low:g}" if strict else f"{low:g} or more"
                message = f"`{name}` of {type(holder).__name__} must be {kind}{limit}, got {value!r}"
                raise BadInput(message, code="out-of-range" if numeric else "wrong-type", argument=name)


def check_between(holder: object, name: str, low: float, high: float, *, count: int | None = None) -> None:
    """Refuse a field that is not a tuple of numbers strictly between `low` and `high`, of length `count` if given."""
    given: object = getattr(holder, name)
    entries: tuple[Any, ...] = given if isinstance(given, tuple) else ()
    numeric = isinstance(given, tuple) and all(isinstance(value, Real) for value in entries)
    in_range = numeric and all(low < float(value) < high for value in entries)
    if not in_range or count not in (None, len(entries)):
        which = "numbers" if count is None else f"{count} numbers"
        limits = f"above {low:g}" if high == inf else f"between {low:g} and {high:g}"
        raise BadInput(
            f"`{name}` of {type(holder).__name__} must be a tuple of {which} {limits}, got {given!r}",
            code="wrong-type" if not numeric else "out-of-range" if not in_range else "shape-mismatch",
            argument=name,
        )


def _has_int(annotation: object) -> bool:
    """Whether `annotation` is `int`, or a generic or union type with `int` in it."""
    return annotation is int or any(map(_has_int, get_args(annotation)))


def unknown_name(
    kind: str, given: str, known: Iterable[str], *, argument: str | None = None, shown_by: str | None = None
) -> BadInput:
    """The error for a name that is not among `known`; its message suggests the nearest ones.

    Where many are known, the message names the command `shown_by` instead of listing them. Example:
    ``raise unknown_name("recipe", "demo.digit", RECIPES)``.
    """
    names = sorted(known)
    near = _near(given, names) if max(len(names), len(given)) <= _MAX_COMPARED else []
    given = printable(given, 100)
    hint = f"did you mean {_one_of(near)}? " if near else ""
    listing = f"`{shown_by}` shows all" if shown_by and len(names) > _MAX_NAMES else f"known: {listed(names)}"
    return BadInput(f"unknown {kind} `{given}`: {hint}{listing}", code="unknown-name", argument=argument)


def _near(given: str, names: list[str]) -> list[str]:
    """The names that contain `given`; else the one with the closest spelling; else those with a word close to it."""
    if containing := [name for name in names if given and given.casefold() in name.casefold()]:
        return containing
    if close := get_close_matches(given, names, n=1, cutoff=0.5):
        return close
    words = {word for name in names for word in re.findall(r"\w+", name)}
    like = get_close_matches(given, sorted(words), n=1, cutoff=0.75)
    return [name for name in names if like and like[0] in name]


def _one_of(near: list[str]) -> str:
    more = f" or {len(near) - _MAX_NAMES} more" if len(near) > _MAX_NAMES else ""
    return f"{'one of ' if len(near) > 1 else ''}{_quoted(near[:_MAX_NAMES])}{more}"


def listed(names: Sequence[str]) -> str:
    """The first names, as many as a sentence takes, and how many more there are."""
    shown, room = list[str](), _MAX_LISTED
    for name in names:
        room -= min(len(name), 100) + 2
        if room < 0:
            break
        shown.append(name)
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return (_quoted(shown) if any("," in name for name in shown) else ", ".join(_short(shown))) + more


def _quoted(names: list[str]) -> str:
    return "; ".join(f"`{name}`" for name in _short(names))


def _short(names: list[str]) -> list[str]:
    return [printable(name, 100) for name in names]
