"""The parser of CSV tables with a named label column."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

import numpy as np
import torch

from remanence.columns import Columns
from remanence.data._parsing import MAX_PROBLEMS, as_tensor, first_of, parsing, user_path
from remanence.data.cells import Cells, Encoded, as_float, encode_cells, encode_numbers, is_missing
from remanence.disk import open_regular
from remanence.errors import MAX_NAME, BadInput, printable, unknown_name
from remanence.types import Data

Rows = list[tuple[int, list[str]]]  # with the numbers of their lines
_UNIT = re.compile(r"^(.+?)\s*(?:\[([^\]]+)\]|\(([^)]+)\))$")
_MAX_COLUMNS = 100_000


def from_csv(path: Path | str, label: str, *, encode: str | None = None) -> Data:
    """Load a table with a header: numeric columns, each scaled to [0, 1], and the column `label` as the classes.

    `encode="auto"` takes other columns too: categories one-hot, dates as days, the median for missing values with a
    column that says so; ids and text are left out. `Data.columns` says what was done, and has names, units (from
    headers such as `age [years]`) and classes.
    """
    return from_csvs([path], label, encode=encode)[0]


def from_csvs(paths: Sequence[Path | str], label: str, *, encode: str | None = None) -> list[Data]:
    """Load several tables of one header, such as private and held-out records, with one scale for all of them."""
    if encode not in (None, "auto"):
        raise unknown_name("encoding", str(encode), ["auto"], argument="encode")
    files, label = [user_path(path) for path in paths], printable(label)
    tables = [_table(file) for file in files]
    header, rows = tables[0][0], [row for _, some in tables for row in some]
    if other := next((file for file, (names, _) in zip(files, tables, strict=True) if names != header), None):
        message = f"{other} must have the header of {files[0]}, got another: give the same columns in the same order"
        raise BadInput(message, code="conflict", argument="path")
    names, units = zip(*map(_named, header), strict=True)
    counts = Counter(names)
    names = tuple(name if counts[name] == 1 else full for name, full in zip(names, header, strict=True))
    at = _label_index(label, header, names)
    cells = [
        Cells(name=names[i], unit=units[i], rows=tuple(n for n, _ in rows), cells=tuple(row[i] for _, row in rows))
        for i in range(len(header))
        if i != at
    ]
    _check_columns(files[0], cells, encode)
    y, classes = _classes(files[0], label, [row[at] for _, row in rows])
    encoded, start = list[Encoded](), 0
    for each in cells:
        encoded.append(encode_cells(each, start) if encode else encode_numbers(each, start))
        start += encoded[-1].features.shape[1]
    columns = Columns(
        columns=tuple(column for each in encoded for column in each.columns),
        label=names[at],
        classes=classes,
        notes=tuple(each.note for each in encoded if each.note is not None),
    )
    if not columns.columns:
        message = (
            f"{files[0]} must hold a column of values besides `{label}`, got none: {first_of(columns.notes, 'columns')}"
        )
        raise BadInput(message, code="empty", argument="path")
    x = as_tensor(np.concatenate([each.features for each in encoded], axis=1))
    sizes = [len(some) for _, some in tables]
    return [
        Data(x=part, y=labels, num_classes=len(classes), name=printable(file.stem, MAX_NAME), columns=columns)
        for file, part, labels in zip(files, x.split(sizes), torch.tensor(y).split(sizes), strict=True)
    ]


def _table(path: Path) -> tuple[list[str], Rows]:
    with parsing(path, "a CSV file"), TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        lines = [(rows.line_num, [cell.strip() for cell in row]) for row in rows if row]
    header = [printable(name) for name in lines[0][1]] if lines else []
    if len(lines) < 2 or len(header) < 2 or len(set(header)) < len(header):
        raise BadInput(
            f"{path} must hold a header of at least two different column names and then rows, got {len(lines)} lines "
            f"and the header {printable(str(header), 300)}: separate columns with commas and name each once",
            code="damaged-file",
            argument="path",
        )
    if len(header) > _MAX_COLUMNS or max(map(len, header)) > MAX_NAME:
        raise BadInput(
            f"{path} must have at most {_MAX_COLUMNS:,} columns, with names of at most {MAX_NAME} characters, got "
            f"{len(header):,} and {max(map(len, header)):,}: shorten the names, or drop columns",
            code="too-large",
            argument="path",
        )
    if odd := [(line, len(row)) for line, row in lines[1:] if len(row) != len(header)]:
        said = ", ".join(f"{count} in row {line}" for line, count in odd[:MAX_PROBLEMS])
        more = f" and {len(odd) - MAX_PROBLEMS} rows more" if len(odd) > MAX_PROBLEMS else ""
        message = f"rows of {path} need {len(header)} values like the header, got {said}{more}: correct them"
        raise BadInput(message, code="shape-mismatch", argument="path")
    return header, lines[1:]


def _named(header: str) -> tuple[str, str | None]:
    """The name and the unit of a header such as `age [years]` or `age (years)`."""
    found = _UNIT.match(header)
    return (found[1], found[2] or found[3]) if found else (header, None)


def _label_index(label: str, header: Sequence[str], names: Sequence[str]) -> int:
    for known in (header, names):
        if label in known:
            return known.index(label)
    raise unknown_name("label column", label, header, argument="label")


def _check_columns(path: Path, cells: Sequence[Cells], encode: str | None) -> None:
    """Refuse columns that are no numbers, all in one message; with an encoding only those that look like mistakes."""
    if encode:
        problems = [f"`{each.name}`: {each.stray()}" for each in cells if each.kind() == "stray"]
        correction = "correct the cells"
    else:
        problems = [problem for each in cells if (problem := each.problem())]
        correction = 'correct, encode or drop the columns, or leave it to `encode="auto"` (`--encode auto`)'
    if problems:
        numeric = all(as_float(cell) is not None for each in cells for cell in each.cells)
        raise BadInput(
            f"columns of {path} must hold finite numbers, got {first_of(problems, 'columns')}: {correction}",
            code="not-finite" if numeric else "wrong-type",
            argument="path",
        )


def _classes(path: Path, label: str, cells: list[str]) -> tuple[list[int], tuple[str, ...]]:
    """The class of each row, and the names of the classes in their order."""
    if gaps := [cell for cell in cells if is_missing(cell)]:
        message = f"the label column `{label}` of {path} must have no gaps, got {len(gaps)}: drop the rows"
        raise BadInput(message, code="empty", argument="label")
    numbers = [number for cell in cells if (number := as_float(cell)) is not None]
    if len(numbers) < len(cells):
        names = sorted(set(cells))
        index = {name: i for i, name in enumerate(names)}
        return [index[cell] for cell in cells], tuple(printable(name, MAX_NAME) for name in names)
    odd = [number for number in numbers if not number.is_integer() or abs(number) >= 2**31]
    if odd:
        message = f"the label column `{label}` of {path} must hold class numbers or names, got {odd[0]:g}: bin it"
        raise BadInput(message, code="wrong-type", argument="label")
    known = {number: i for i, number in enumerate(sorted(set(numbers)))}
    return [known[number] for number in numbers], tuple(f"{number:g}" for number in known)
