"""What fitted transformers of scikit-learn make of the columns of a table: one `Feature` for each number that enters
the estimator, with the way back to the owner's units."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from remanence.columns import Column
from remanence.errors import BadInput

_STANDARD = 8.0  # standard deviations on either side that a scaler is taken to allow for


@final
@dataclass(frozen=True, kw_only=True)
class Feature:
    """One input z of an estimator: a number of a column in raw units, `offset + scale * z`, or one of its categories.

    `low` and `high` are where z is expected, None where no transformer says so.
    """

    column: str
    offset: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    category: str | None = None
    reference: str | None = None  # the category of the column that has no feature of its own

    def scaled(self, center: float, scale: float, low: float | None, high: float | None) -> "Feature":
        """The feature after (z - center) / scale."""
        if self.category is not None:
            low, high = (-center / scale, (1 - center) / scale)
        return replace(self, offset=self.offset + self.scale * center, scale=self.scale * scale, low=low, high=high)


def transform_features(transformer: Any, features: Sequence[Feature]) -> list[Feature]:
    """The features that a fitted transformer makes of these; transformers without a way back are refused."""
    from sklearn import compose, impute, pipeline, preprocessing

    match transformer:
        case "passthrough" | None:
            return list(features)
        case "drop":
            return []
        case pipeline.Pipeline():
            for _, step in transformer.steps:
                features = transform_features(step, features)
            return list(features)
        case compose.ColumnTransformer():
            return _by_columns(transformer, features)
        case impute.SimpleImputer():
            return _imputed(transformer, features)
        case preprocessing.OneHotEncoder():
            return _one_hot(transformer, features)
        case preprocessing.StandardScaler() | preprocessing.RobustScaler():
            center = transformer.mean_ if hasattr(transformer, "mean_") else transformer.center_
            return _scaled(features, center, transformer.scale_, -_STANDARD, _STANDARD)
        case preprocessing.MinMaxScaler():
            low, high = transformer.feature_range
            center, scale = -transformer.min_ / transformer.scale_, 1 / transformer.scale_
            return _scaled(features, center, scale, 2 * low - high, 2 * high - low)
        case preprocessing.MaxAbsScaler():
            return _scaled(features, None, transformer.scale_, -2.0, 2.0)
        case preprocessing.FunctionTransformer(func=None):
            return list(features)
    message = (
        f"`estimator` holds a {type(transformer).__name__}, whose way back to raw values is not known here: use "
        "scalers (StandardScaler, MinMaxScaler, RobustScaler, MaxAbsScaler), OneHotEncoder and SimpleImputer, alone "
        "or in a ColumnTransformer or Pipeline"
    )
    raise BadInput(message, code="unsupported-model", argument="estimator")


def columns_of(features: Sequence[Feature], low: Sequence[float], high: Sequence[float]) -> tuple[Column, ...]:
    """The columns behind features whose range from `low` to `high` is mapped to [0, 1]."""
    columns, index = list[Column](), 0
    while index < len(features):
        feature = features[index]
        if feature.category is None:
            raw = [feature.offset + feature.scale * float(z) for z in (low[index], high[index])]
            columns.append(Column(name=feature.column, start=index, low=raw[0], high=raw[1]))
            index += 1
            continue
        same = [f for f in features[index:] if f.column == feature.column and f.category is not None]
        names = tuple(str(f.category) for f in same)
        columns.append(
            Column(name=feature.column, start=index, kind="category", categories=names, reference=feature.reference)
        )
        index += len(same)
    return tuple(columns)


def _scaled(features: Sequence[Feature], center: Any, scale: Any, low: float, high: float) -> list[Feature]:
    centers = np.zeros(len(features)) if center is None else center
    scales = np.ones(len(features)) if scale is None else scale
    return [f.scaled(float(c), float(s), low, high) for f, c, s in zip(features, centers, scales, strict=True)]


def _imputed(imputer: Any, features: Sequence[Feature]) -> list[Feature]:
    """Columns without any value are left out; with `add_indicator` there are features that say what was missing."""
    empty = [isinstance(value, float) and np.isnan(value) for value in imputer.statistics_]
    selected = [f for f, gone in zip(features, empty, strict=True) if imputer.keep_empty_features or not gone]
    if imputer.add_indicator:
        missing = [features[index] for index in imputer.indicator_.features_]
        selected += [Feature(column=f"{f.column} missing", low=0.0, high=1.0) for f in missing]
    return selected


def _one_hot(encoder: Any, features: Sequence[Feature]) -> list[Feature]:
    if encoder.min_frequency is not None or encoder.max_categories is not None:
        message = "`estimator` holds a OneHotEncoder that joins rare categories, which have no way back"
        raise BadInput(message, code="unsupported-model", argument="estimator")
    dropped = [None] * len(features) if encoder.drop_idx_ is None else encoder.drop_idx_
    made = list[Feature]()
    for feature, categories, drop in zip(features, encoder.categories_, dropped, strict=True):
        reference = None if drop is None else str(categories[drop])
        made += [
            Feature(column=feature.column, low=0.0, high=1.0, category=str(name), reference=reference)
            for index, name in enumerate(categories)
            if index != drop
        ]
    return made


def _by_columns(transformer: Any, features: Sequence[Feature]) -> list[Feature]:
    names = list(getattr(transformer, "feature_names_in_", [f.column for f in features]))
    made = list[Feature]()
    for _, step, chosen in transformer.transformers_:
        if isinstance(step, str) and step == "drop":
            continue
        made += transform_features(step, [features[index] for index in _indices(chosen, names)])
    return made


def _indices(chosen: Any, names: Sequence[str]) -> list[int]:
    """Columns as scikit-learn names them (a name, an index, a slice, a mask, or several), by index."""
    if isinstance(chosen, slice):
        if isinstance(chosen.start, str) or isinstance(chosen.stop, str):
            first = names.index(chosen.start) if chosen.start is not None else 0
            last = names.index(chosen.stop) if chosen.stop is not None else len(names) - 1
            return list(range(first, last + 1))  # names are taken up to and with the last one
        return list(range(len(names))[chosen])
    several = [chosen] if isinstance(chosen, str | int | np.integer) else list(chosen)
    if several and all(isinstance(each, bool | np.bool_) for each in several):
        return [index for index, each in enumerate(several) if each]
    return [names.index(each) if isinstance(each, str) else range(len(names))[int(each)] for each in several]
