"""The parser of CSV tables with a named label column."""

import csv
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remanence.data._parsing import as_tensor, parsing
from remanence.errors import BadInput, unknown_name
from remanence.types import Data


def from_csv(path: Path | str, label: str) -> Data:
    """Load a table with a header: numeric columns, each scaled to [0, 1], and the column `label` as the classes."""
    path = Path(path)
    header, rows = _table(path)
    if label not in header:
        raise unknown_name("label column", label, header, argument="label")
    at = header.index(label)
    features = [column for column in range(len(header)) if column != at]
    cells = [[_number(path, line, header[column], row[column]) for column in features] for line, row in rows]
    y, num_classes = _classes(path, label, [row[at] for _, row in rows])
    return Data(x=_min_max(np.array(cells)), y=torch.tensor(y), num_classes=num_classes, name=path.stem)


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    with parsing(path, "a CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        lines = [(rows.line_num, [cell.strip() for cell in row]) for row in rows if row]
    if len(lines) < 2 or len(lines[0][1]) < 2 or len(set(lines[0][1])) < len(lines[0][1]):
        raise BadInput(
            f"{path} must hold a header of at least two different column names and then rows, got {len(lines)} lines "
            f"and the header {lines[0][1] if lines else []}: separate columns with commas and name each once",
            code="damaged-file",
            argument="path",
        )
    header = lines[0][1]
    for line, row in lines[1:]:
        if len(row) != len(header):
            message = f"row {line} of {path} needs {len(header)} values like the header, got {len(row)}: correct it"
            raise BadInput(message, code="shape-mismatch", argument="path")
    return header, lines[1:]


def _number(path: Path, line: int, column: str, cell: str) -> float:
    value = _as_float(cell)
    if value is None or not math.isfinite(value):
        raise BadInput(
            f"row {line}, column `{column}` of {path} must be a finite number, got {cell!r}: "
            "correct the value, or drop or encode the column",
            code="wrong-type" if value is None else "not-finite",
            argument="path",
        )
    return value


def _classes(path: Path, label: str, cells: list[str]) -> tuple[list[int], int]:
    if "" in cells:
        message = f"the label column `{label}` of {path} must have no gaps, got {cells.count('')}: drop the rows"
        raise BadInput(message, code="empty", argument="label")
    numbers = [number for cell in cells if (number := _as_float(cell)) is not None]
    if len(numbers) < len(cells):
        index = {name: i for i, name in enumerate(sorted(set(cells)))}
        return [index[cell] for cell in cells], len(index)
    odd = [number for number in numbers if not number.is_integer() or abs(number) >= 2**31]
    if odd:
        message = f"the label column `{label}` of {path} must hold class numbers or names, got {odd[0]:g}: bin it"
        raise BadInput(message, code="wrong-type", argument="label")
    known = {number: i for i, number in enumerate(sorted(set(numbers)))}
    return [known[number] for number in numbers], len(known)


def _as_float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _min_max(values: NDArray[np.float64]) -> Tensor:
    halves = values / 2  # halved, because the difference of the largest floats would overflow
    low, high = halves.min(axis=0), halves.max(axis=0)
    span = np.where(high > low, high - low, 1.0)  # a constant column becomes 0
    return as_tensor((halves - low) / span)
