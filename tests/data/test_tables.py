"""CSV tables, written by hand here and read back."""

import csv
from pathlib import Path

import pytest
import torch
from refusals import refused

from remanence.data import from_csv


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_csv_scales_columns_and_sorts_classes(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "age,kind,height,same", "20,dog,-1,7", "30,cat,0,7", "40, dog ,3,7", "")
    data = from_csv(path, "kind")
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == [[0.0, 0.0, 0.0], [0.5, 0.25, 0.0], [1.0, 1.0, 0.0]]
    assert data.y.tolist() == [1, 0, 1]
    assert (data.num_classes, data.name, data.is_image) == (2, "t", False)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [("2 0 1", [2, 0, 1]), ("2.0 0.0 1.0", [2, 0, 1]), ("2 0 x", [1, 0, 2]), ("1 -1 7e8", [1, 0, 2])],
)
def test_csv_labels_are_numbered_in_their_order(tmp_path: Path, cells: str, expected: list[int]) -> None:
    rows = [f"{i},{cell}" for i, cell in enumerate(cells.split())]
    data = from_csv(table(tmp_path / "t.csv", "a,y", *rows), "y")
    assert data.y.tolist() == expected
    assert data.num_classes == 3


def test_csv_reads_what_spreadsheets_write(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["y", "a, b"], ["no", "1e1"], ["yes", "2e1"]])
    data = from_csv(path, "y")
    assert data.x.tolist() == [[0.0], [1.0]]
    assert data.y.tolist() == [0, 1]


def test_csv_of_the_largest_numbers(tmp_path: Path) -> None:
    data = from_csv(table(tmp_path / "t.csv", "a,y", "-1.7e308,0", "0,1", "1.7e308,0"), "y")
    assert data.x.flatten().tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (["a,b,y", "1,2,0", "1,two,0"], "wrong-type"),
        (["a,b,y", "1,,0"], "wrong-type"),
        (["a,b,y", "nan,1,0"], "not-finite"),
        (["a,b,y", "1,2,0", "1,2"], "shape-mismatch"),
        (["a,b,y"], "damaged-file"),
        ([""], "damaged-file"),
        (["y", "1"], "damaged-file"),
        (["a,a,y", "1,2,0"], "damaged-file"),
        (["a,b,y", "1,2,0.5"], "wrong-type"),
        (["a,b,y", "1,2,1e300"], "wrong-type"),
        (["a,b,y", "1,2,"], "empty"),
    ],
)
def test_csv_refusals(tmp_path: Path, rows: list[str], code: str) -> None:
    with refused(code):
        from_csv(table(tmp_path / "t.csv", *rows), "y")


def test_csv_suggests_the_label_and_names_broken_files(tmp_path: Path) -> None:
    with refused("unknown-name", "label"):
        from_csv(table(tmp_path / "t.csv", "a,species", "1,x"), "speces")
    (tmp_path / "u.csv").write_bytes("a,y\n1,é\n".encode("utf-16"))
    with refused("damaged-file", "path"):
        from_csv(tmp_path / "u.csv", "y")
