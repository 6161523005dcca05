"""Raw rows of a table as `Data` in [0, 1] for an estimator of scikit-learn, and the way back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from remanence.auditing.inputs.features import Feature, columns_of, transform_features
from remanence.columns import Column, Columns, resolution_of
from remanence.errors import BadInput
from remanence.types import Data

Floats = NDArray[np.float64]
_MAX_NAMED = 5  # classes in a message


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Encoder:
    """Raw rows through fitted transformers into the features of an estimator, and these into [0, 1].

    `low` and `high` (features,) are what becomes 0 and 1; `classes` are the labels of a classifier, `targets` the known
    targets of a regression, of which a record gets the nearest.
    """

    transformer: Any  # None: rows enter the estimator as they are
    low: Floats
    high: Floats
    columns: Columns
    classes: tuple[Any, ...] = ()
    targets: Floats | None = None

    @property
    def num_classes(self) -> int:
        return len(self.classes) if self.targets is None else len(self.targets)

    def encode(self, x: Any, y: Any, argument: str) -> Data:
        """The rows `x`, an array or a data frame, with labels `y` as the estimator knows them; one row may be flat."""
        features = transformed(self.transformer, x, argument)
        if features.shape[1] != len(self.low):
            message = f"`{argument}` must hold rows of {len(self.low)} features, got {features.shape[1]}: give raw rows"
            raise BadInput(message, code="shape-mismatch", argument=argument)
        scaled = (features - self.low) / (self.high - self.low)
        self._check_range(scaled, argument)
        labels = self._labels(y, argument)
        if len(labels) != len(scaled):
            message = f"`{argument}` must hold a label for each row, got {len(scaled)} rows and {len(labels)} labels"
            raise BadInput(message, code="shape-mismatch", argument=argument)
        return Data(
            x=torch.from_numpy(np.ascontiguousarray(scaled)),
            y=torch.from_numpy(labels),
            num_classes=self.num_classes,
            name=argument,
            columns=self.columns,
        )

    def covering(self, given: Sequence[Any]) -> "Encoder":
        """The encoder with ranges that reach beyond these raw rows where they are too narrow: by as much again, for an
        attack that is cut off at the side of a range must not have a value of the rows by that."""
        features = [transformed(self.transformer, x, "truth") for x in given]
        if any(each.shape[1] != len(self.low) for each in features):
            return self  # which is refused when they are encoded
        rows = np.concatenate([self.low[None], *features, self.high[None]])
        first, last = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
        low = np.where(first < self.low, first - (last - first), self.low)
        high = np.where(last > self.high, last + (last - first), self.high)
        unit = (high - low) / (self.high - self.low)
        columns = tuple(
            c if c.kind == "category" else _widened(c, (low - self.low) / (self.high - self.low), unit)
            for c in self.columns.columns
        )
        return replace(self, low=low, high=high, columns=replace(self.columns, columns=columns))

    def _check_range(self, scaled: Floats, argument: str) -> None:
        if not np.isfinite(scaled).all():
            message = f"`{argument}` holds missing or infinite values that the estimator does not impute: drop the rows"
            raise BadInput(message, code="not-finite", argument=argument)
        outside = np.argwhere((scaled < 0) | (scaled > 1))
        if len(outside):
            row, feature = outside[0]
            column = next(c for c in self.columns.columns if c.start <= feature < c.start + c.size)
            value = column.low + (column.high - column.low) * scaled[row, feature]
            message = (
                f"row {row} of `{argument}` has {value:.6g} in column `{column.name}`, outside the range from "
                f"{column.low:.6g} to {column.high:.6g} that the release was made for: give from_sklearn `like=` rows "
                "of the same kind"
            )
            raise BadInput(message, code="out-of-range", argument=argument)

    def _labels(self, y: Any, argument: str) -> NDArray[np.int64]:
        given = np.atleast_1d(np.asarray(y))
        if self.targets is not None:
            distance = np.abs(given.astype(float).reshape(-1, 1) - self.targets)
            return np.array(distance.argmin(axis=1), dtype=np.int64)
        index = {label: i for i, label in enumerate(self.classes)}
        unknown = [label for label in given.ravel().tolist() if label not in index]
        if unknown:
            names = ", ".join(map(repr, self.classes[:_MAX_NAMED]))
            message = f"`{argument}` must hold labels that the estimator was fitted to ({names}), got {unknown[0]!r}"
            raise BadInput(message, code="out-of-range", argument=argument)
        return np.array([index[label] for label in given.ravel().tolist()], dtype=np.int64)


def _widened(column: Column, start: Floats, unit: Floats) -> Column:
    """The column after x -> (x - start) / unit of its features."""
    span, index = column.high - column.low, column.start
    low = column.low + span * float(start[index])
    return replace(column, low=low, high=low + span * float(unit[index]))


def encoder_for(estimator: Any, transformer: Any, rows: Sequence[Any], targets: Any) -> Encoder:
    """The encoder of a fitted `estimator` behind `transformer`; `rows` are known raw rows, some arrays or frames, which
    give the ranges: as far again on either side as they reach. Without any a scaler gives them."""
    features = _features(estimator, transformer)
    low = np.array([0.0 if f.low is None else f.low for f in features])
    high = np.array([1.0 if f.high is None else f.high for f in features])
    resolutions: list[float | None] = [None] * len(features)
    if rows:
        known = np.concatenate([transformed(transformer, x, "fixed") for x in rows])
        first, last = known.min(axis=0), known.max(axis=0)
        span = np.where(last > first, last - first, 1.0)
        numeric = np.array([f.category is None for f in features])
        low, high = np.where(numeric, first - span, low), np.where(numeric, last + span, high)
        resolutions = [
            resolution_of([round(v, 9) for v in (f.offset + f.scale * known[:, i]).tolist()])
            for i, f in enumerate(features)
        ]
    columns = tuple(
        replace(c, resolution=resolutions[c.start]) if c.kind == "number" else c
        for c in columns_of(features, low.tolist(), high.tolist())
    )
    classes = tuple(getattr(estimator, "classes_", np.array([])).tolist())
    names = map(str, classes) if targets is None else (f"{target:.6g}" for target in targets)
    return Encoder(
        transformer=transformer,
        low=low,
        high=high,
        columns=Columns(columns=columns, classes=tuple(names)),
        classes=classes,
        targets=targets,
    )


def transformed(transformer: Any, x: Any, argument: str) -> Floats:
    """(n, features): raw rows as the features of the estimator."""
    rows = x if hasattr(x, "columns") or hasattr(x, "toarray") else np.asarray(x)
    if isinstance(rows, np.ndarray) and rows.ndim == 1:
        rows = rows[None]
    try:
        made = rows if transformer is None else transformer.transform(rows)
        made = made.toarray() if hasattr(made, "toarray") else made
        floats = np.asarray(made, dtype=np.float64)
    except (ValueError, TypeError, KeyError) as error:
        said = str(error).partition("\n")[0]
        message = f"`{argument}` does not fit the estimator ({said}): give rows as it was fitted to"
        raise BadInput(message, code="shape-mismatch", argument=argument) from error
    return floats.reshape(len(floats), -1)


def _features(estimator: Any, transformer: Any) -> list[Feature]:
    """The inputs of `estimator`, named after the raw columns that they come from."""
    first = estimator if transformer is None else transformer
    names = [str(name) for name in getattr(first, "feature_names_in_", [])]
    names = names or [f"x{i}" for i in range(first.n_features_in_)]
    features = [Feature(column=name) for name in names]
    return features if transformer is None else transform_features(transformer, features)
