"""What the cells of one column of a table are: numbers, dates, categories, ids; and as features in [0, 1]."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from remanence.columns import Column, resolution_of
from remanence.errors import MAX_NAME, printable

Kind: TypeAlias = Literal["number", "date", "category", "id", "text", "empty", "stray"]
Floats: TypeAlias = NDArray[np.float64]
_MISSING = {"", "na", "n/a", "nan", "null", "none", "nil", "?", "-", "."}
_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
_DATES = (*_DAYS, *(f"%Y-%m-%d{mark}%H:%M{seconds}" for mark in " T" for seconds in ("", ":%S")))
_ID_NAME = re.compile(r"(^|[^a-z])(id|uuid|guid|ssn|index|key)([^a-z]|$)|number$|_nr$", re.IGNORECASE)
_MANY = 50  # categories: with more, in more than half of the rows, a column is text
_TOO_MANY = 1000  # categories: with more it is text in any case, for each would be a feature
_MIN_IDS = 10  # rows: with fewer, different values say nothing
_STRAY = 0.9  # of the cells are numbers: then the others are mistakes
_MAX_SHOWN = 3
MISSING = "missing"  # name of a category, and end of the name of a column that says so


@final
@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells of a column as text, with its name and unit; `rows` are the lines of the file they stand in."""

    name: str
    unit: str | None
    rows: tuple[int, ...]
    cells: tuple[str, ...]

    @property
    def gaps(self) -> list[int]:
        """The rows without a value."""
        return [row for row, cell in zip(self.rows, self.cells, strict=True) if is_missing(cell)]

    @property
    def present(self) -> list[str]:
        return [cell for cell in self.cells if not is_missing(cell)]

    def kind(self) -> Kind:
        """What the cells are, gaps apart."""
        present = self.present
        if not present:
            return "empty"
        numbers = [number for cell in present if (number := as_float(cell)) is not None]
        distinct = len(set(present))
        if len(numbers) == len(present):
            return "id" if distinct == len(present) >= _MIN_IDS and _counts(self.name, numbers) else "number"
        if date_format(present) is not None:
            return "date"
        if len(numbers) > _STRAY * len(present):
            return "stray"
        if distinct == len(present) >= _MIN_IDS:
            return "id"
        return "text" if distinct > _MANY and (distinct > len(present) / 2 or distinct > _TOO_MANY) else "category"

    def problem(self) -> str | None:
        """What keeps the column from being numbers, in words; None where nothing does."""
        kind, found = self.kind(), []
        match kind:
            case "date":
                found.append(f"dates such as {_shown(self.present[0])}")
            case "category":
                names = [name for name, _ in Counter(self.present).most_common()]
                more = ", ..." if len(names) > _MAX_SHOWN else ""
                found.append(f"{len(names)} categories ({', '.join(map(_shown, names[:_MAX_SHOWN]))}{more})")
            case "text":
                found.append(f"text, {len(set(self.present))} different values")
            case "id" if as_float(self.present[0]) is None:
                found.append("ids, different in each row")
            case "stray":
                found.append(self.stray())
            case "empty":
                found.append("no values")
        if self.gaps and kind != "empty":
            found.append(f"{len(self.gaps)} missing value{'s' * (len(self.gaps) > 1)} (first in row {self.gaps[0]})")
        return f"`{self.name}`: {', '.join(found)}" if found else None

    def stray(self) -> str:
        """The cells that are no numbers in a column of numbers, in words."""
        pairs = zip(self.rows, self.cells, strict=True)
        odd = [(row, cell) for row, cell in pairs if not is_missing(cell) and as_float(cell) is None]
        shown = ", ".join(f"'{_shown(cell)}' in row {row}" for row, cell in odd[:_MAX_SHOWN])
        return f"numbers but for {shown}{', ...' if len(odd) > _MAX_SHOWN else ''}"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """The columns that one column of a file became, their features (rows, features), and what was done in words."""

    columns: tuple[Column, ...]
    features: Floats
    note: str | None = None


def encode_numbers(cells: Cells, start: int) -> Encoded:
    """A column of numbers as a feature in [0, 1], which is number `start` of a record."""
    return _numeric(cells, [as_float(cell) for cell in cells.cells], start, "number")


def encode_cells(cells: Cells, start: int) -> Encoded:
    """Any column as features in [0, 1], of which the first is number `start` of a record."""
    kind = cells.kind()
    match kind:
        case "number":
            return encode_numbers(cells, start)
        case "date":
            said = date_format(cells.present)
            assert said is not None
            values = [None if is_missing(cell) else _days(cell, said) for cell in cells.cells]
            return _numeric(cells, values, start, "date")
        case "category":
            return _one_hot(cells, start)
    why = {"id": "it is different in each row, as an id is", "text": "it is text", "empty": "it has no values"}
    nothing = np.zeros((len(cells.cells), 0))
    return Encoded(columns=(), features=nothing, note=f"`{cells.name}` was left out: {why[kind]}")


def _numeric(cells: Cells, values: Sequence[float | None], start: int, kind: Literal["number", "date"]) -> Encoded:
    """One feature, and where values are missing their median and a feature that says so."""
    present = [value for value in values if value is not None and math.isfinite(value)]
    gap = np.array([value is None or not math.isfinite(value) for value in values])
    median = 2 * np.median(np.array(present) / 2)  # halved: the sum of the largest would overflow
    filled = np.array([median if gone else value for value, gone in zip(values, gap, strict=True)], float)
    low, high = float(filled.min()), float(filled.max())
    high = high if high > low else low + 1.0
    column = Column(
        name=cells.name, start=start, kind=kind, low=low, high=high, resolution=resolution_of(present), unit=cells.unit
    )
    half = high / 2 - low / 2  # as the difference of the largest would overflow
    features = (filled / 2 - low / 2) / half if half else np.zeros_like(filled)  # the largest and smallest have none
    said = f"`{cells.name}` was read as dates, in days" if kind == "date" else None
    if not gap.any():
        return Encoded(columns=(column,), features=features[:, None], note=said)
    flag = Column(name=f"{cells.name} {MISSING}", start=start + 1, resolution=1.0)
    note = f"`{cells.name}` had {int(gap.sum())} missing values: the median stands for them, and `{flag.name}` says so"
    return Encoded(columns=(column, flag), features=np.stack([features, gap.astype(float)], axis=1), note=note)


def _one_hot(cells: Cells, start: int) -> Encoded:
    """One feature for each category; of two the second."""
    named = [MISSING if is_missing(cell) else cell for cell in cells.cells]
    names = sorted(set(named))
    reference, categories = (names[0], names[1:]) if len(names) <= 2 else (None, names)
    features = np.array([[float(cell == name) for name in categories] for cell in named]).reshape(len(named), -1)
    shown = tuple(printable(name, MAX_NAME) for name in categories)
    reference = None if reference is None else printable(reference, MAX_NAME)
    column = Column(name=cells.name, start=start, kind="category", categories=shown, reference=reference)
    note = f"`{cells.name}` became {len(names)} categories"
    return Encoded(columns=(column,) if categories else (), features=features, note=note)


def _shown(cell: str) -> str:
    return printable(cell, 40)


def is_missing(cell: str) -> bool:
    """Whether a cell holds no value: it is empty, says so, or is no finite number."""
    number = as_float(cell)
    return cell.casefold() in _MISSING or (number is not None and not math.isfinite(number))


def as_float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def date_format(cells: Sequence[str]) -> str | None:
    """The first format in which all cells are dates; None where there is none."""
    if not any(char.isdigit() for char in cells[0]):
        return None
    return next((said for said in _DATES if all(_is_date(cell, said) for cell in cells)), None)


def _is_date(cell: str, said: str) -> bool:
    try:
        datetime.strptime(cell, said)
    except ValueError:
        return False
    return True


def _days(cell: str, said: str) -> float:
    moment = datetime.strptime(cell, said)
    return moment.toordinal() + (moment.hour * 3600 + moment.minute * 60 + moment.second) / 86400


def _counts(name: str, numbers: Sequence[float]) -> bool:
    """Whether different numbers are ids: by their name, or as they count the rows."""
    if not all(number.is_integer() for number in numbers):
        return False
    return bool(_ID_NAME.search(name)) or all(b - a == 1 for a, b in pairwise(numbers))
