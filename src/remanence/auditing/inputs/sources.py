"""The private, held-out and other records of an audit from their files, all on one scale."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from remanence.bounds import Bounds, hull
from remanence.columns import Column, Columns
from remanence.data import load
from remanence.data._parsing import as_tensor, user_path
from remanence.data.npz import opened_npz
from remanence.data.tables import from_csvs
from remanence.errors import BadInput
from remanence.progress import say
from remanence.types import Data


def load_records(sources: Sequence[str], label: str | None) -> list[Data]:
    """The records of each source. Tables are scaled to [0, 1] together, and `Data.columns` has their raw values; where
    a source says otherwise in what box its values lie (`bounds`), they all stay as they are. How a CSV was encoded is
    said."""
    if label is not None and all(source.endswith(".csv") for source in sources):
        found = from_csvs(sources, label, encode="auto")
        if (columns := found[0].columns) is not None and columns.notes:
            say(f"note: in {sources[0]} {columns.encoding}; the model must have been trained on these")
    else:
        found = _scaled_together([_loaded(source, label) for source in sources])
    classes = max(data.num_classes for data in found)
    return [replace(data, num_classes=classes) for data in found]


def raw_units(data: Data) -> tuple[Tensor, Tensor] | None:
    """The mean and the standard deviation by which `Normalize` makes raw values of records; None for images."""
    if data.columns is None:
        return None
    low, span = torch.zeros(data.x.shape[1]), torch.ones(data.x.shape[1])
    for column in data.columns.columns:
        if column.kind != "category":
            low[column.start], span[column.start] = column.low, column.high - column.low
    return -low / span, 1 / span


def _loaded(source: str, label: str | None) -> Data | tuple[Tensor, Tensor, str]:
    """The records, or the raw values and labels of a table in an .npz that does not lie in [0, 1]."""
    try:
        return load(source, label=label)
    except BadInput as fault:
        if (fault.code, fault.argument) != ("out-of-range", "x") or not source.endswith(".npz"):
            raise
        raw = _raw_table(user_path(source))
        if raw is None:
            raise BadInput(
                f"{fault}. Where the model normalises its inputs, give the values from before, in [0, 1], and "
                "`--normalize` with the means and standard deviations",
                code=fault.code,
                argument=fault.argument,
            ) from None
        low, high = float(raw[0].min()), float(raw[0].max())
        say(f"note: {source} has values from {low:g} to {high:g}: a table, whose columns enter the network as they are")
        return (*raw, Path(source).stem)


def _raw_table(path: Path) -> tuple[Tensor, Tensor] | None:
    with opened_npz(path) as arrays:
        if not {"x", "y"} <= set(arrays.keys):
            return None
        found = arrays.load(["x", "y"])
    x, y = as_tensor(found["x"]).float(), as_tensor(found["y"]).long().flatten()
    return (x, y) if x.ndim == 2 and len(x) == len(y) and bool(x.isfinite().all()) and int(y.min()) >= 0 else None


def _scaled_together(found: Sequence[Data | tuple[Tensor, Tensor, str]]) -> list[Data]:
    """Tables that do not lie in [0, 1] by the extremes of all of them; others, and all where a box is given, as they
    are."""
    given = [each for each in found if isinstance(each, Data)]
    if len(given) == len(found) and len({each.bounds for each in given}) <= 1:
        return given
    if boxes := [each.bounds for each in given if not each.is_unit]:
        return [_in_box(each, hull(boxes)) for each in found]
    parts = [(each.x, each.y, each.name) if isinstance(each, Data) else each for each in found]
    if len({x.shape[1:] for x, _, _ in parts}) > 1:
        shapes = ", ".join(f"{tuple(x.shape[1:])} in {name}" for x, _, name in parts)
        raise BadInput(f"records must have one shape, got {shapes}: give the same columns", code="shape-mismatch")
    values = torch.cat([x for x, _, _ in parts])
    low, high = values.amin(0), values.amax(0)
    high = torch.where(high > low, high, low + 1)
    columns = Columns(
        columns=tuple(
            Column(name=f"column {i}", start=i, low=float(low[i]), high=float(high[i])) for i in range(len(low))
        )
    )
    return [
        Data(
            x=((x - low) / (high - low)).clamp(0, 1),
            y=y,
            num_classes=int(max(int(labels.max()) for _, labels, _ in parts)) + 1,
            name=name,
            columns=columns,
        )
        for x, y, name in parts
    ]


def _in_box(found: Data | tuple[Tensor, Tensor, str], bounds: Bounds) -> Data:
    if isinstance(found, Data):
        return replace(found, bounds=bounds)
    x, y, name = found
    return Data(x=x, y=y, num_classes=int(y.max()) + 1, name=name, bounds=bounds)
