"""What the columns of a table mean: how the features of a record, which lie in [0, 1], read in the owner's units."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

Kind: TypeAlias = Literal["number", "category", "date"]
_MAX_DECIMALS = 8
_MAX_NAMED = 50  # columns in a message


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table and the features that it became: one, or for categories one for each of them."""

    name: str
    start: int  # its first feature
    kind: Kind = "number"
    low: float = 0.0  # raw value of a feature that is 0; dates are counted in days
    high: float = 1.0  # raw value of a feature that is 1
    resolution: float | None = None  # the step between raw values; None: not known
    unit: str | None = None
    categories: tuple[str, ...] = ()
    reference: str | None = None  # the category for which all features are 0

    @property
    def size(self) -> int:
        """The number of its features."""
        return len(self.categories) if self.kind == "category" else 1

    @property
    def features(self) -> str:
        """Its name, and of categories how many features they are and in which order."""
        if self.kind != "category":
            return self.name
        count = f"{self.size} features: " if self.size > 1 else "1 where it is "
        return f"{self.name} ({count}{', '.join(self.categories)})"

    def raw(self, x: Tensor) -> Tensor:
        """(n,): the raw values of records `x` (n, features), rounded to the resolution; of categories their index, -1
        for the reference."""
        features = x.flatten(1)[:, self.start : self.start + self.size].double()
        if self.kind == "category":
            best = features.max(dim=1)
            reference = torch.full_like(best.indices, -1)
            return best.indices if self.reference is None else torch.where(best.values > 0.5, best.indices, reference)
        values = self.low + (self.high - self.low) * features[:, 0]
        return values if self.resolution is None else (values / self.resolution).round() * self.resolution

    def describe(self, value: float) -> str:
        """A raw value in words, such as `female`, `1985-03-02` or `12.3 years`."""
        if self.kind == "category":
            return str(self.reference) if value < 0 else self.categories[int(value)]
        if self.kind == "date" and isfinite(value):
            return date.fromordinal(min(max(1, round(value)), date.max.toordinal())).isoformat()
        return f"{value:.6g} {self.unit}" if self.unit else f"{value:.6g}"


@final
@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a table, the names of its label column and of the classes, or a regression's target values."""

    columns: tuple[Column, ...]
    label: str = "label"
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was done to columns that are no numbers, in words

    @property
    def encoding(self) -> str:
        """What was done to columns that are no numbers, and what each feature of a record is, in their order."""
        features = sum(column.size for column in self.columns)
        order = _first(", ", [column.features for column in self.columns])
        done = f"{_first('; ', self.notes)}; " if self.notes else ""
        return f"{done}records have {features:,} features, in this order: {order}"

    def fit(self, features: int) -> bool:
        """Whether each column has features among so many, and a step that values can be rounded to."""
        return all(
            each.start >= 0 and each.size >= 1 and each.start + each.size <= features and each.resolution != 0
            for each in self.columns
        )

    def describe(self, x: Tensor) -> list[dict[str, str]]:
        """Each record of `x` (n, features) as raw values in words, by the names of the columns."""
        raw = {column.name: [column.describe(v) for v in column.raw(x).tolist()] for column in self.columns}
        return [{name: values[row] for name, values in raw.items()} for row in range(len(x))]

    def describe_label(self, y: int) -> str:
        """The name of class `y`, or the target value that it stands for."""
        return self.classes[y] if 0 <= y < len(self.classes) else str(y)


def _first(separator: str, said: Sequence[str]) -> str:
    more = [f"and {len(said) - _MAX_NAMED:,} more"] if len(said) > _MAX_NAMED else []
    return separator.join([*said[:_MAX_NAMED], *more])


def resolution_of(values: Sequence[float]) -> float | None:
    """The largest power of ten of which all values are multiples, at most 1; None where they have more than eight
    decimals, as measured ones do."""
    for decimals in range(_MAX_DECIMALS + 1):
        if all(abs(value - round(value, decimals)) <= 1e-9 * max(1e-9, abs(value)) for value in values):
            return float(10.0**-decimals)
    return None
