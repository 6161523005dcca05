"""CSV tables, written by hand here and read back."""

import csv
from pathlib import Path

import pytest
import torch
from refusals import refused

from remanence.data import from_csv, from_csvs
from remanence.types import concat


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


MIXED = [
    "id,age [years],sex,income (EUR),born,town,ill",
    *(
        f"p{i},{20 + 2 * i},{'fm'[i % 2]},{'' if i == 3 else 1000.5 + i},"
        f"19{50 + i}-03-0{1 + i % 9},{'UBK'[i % 3]},{i % 2}"
        for i in range(12)
    ),
]


def test_all_problems_of_a_file_are_said_in_one_message(tmp_path: Path) -> None:
    with refused("wrong-type", "path") as caught:
        from_csv(table(tmp_path / "t.csv", *MIXED), "ill")
    said = str(caught.value)
    for part in ("`id`: ids", "`sex`: 2 categories (f, m)", "`born`: dates"):
        assert part in said
    assert "`income`: 1 missing value (first in row 5)" in said
    assert "`town`: 3 categories" in said
    assert "`age`" not in said
    assert "encode" in said


def test_columns_are_encoded_and_read_back_in_their_units(tmp_path: Path) -> None:
    data = from_csv(table(tmp_path / "t.csv", *MIXED), "ill", encode="auto")
    columns = data.columns
    assert columns is not None
    assert [(c.name, c.kind, c.unit) for c in columns.columns] == [
        ("age", "number", "years"),
        ("sex", "category", None),
        ("income", "number", "EUR"),
        ("income missing", "number", None),
        ("born", "date", None),
        ("town", "category", None),
    ]
    assert data.shape == (1 + 1 + 2 + 1 + 3,)
    assert (columns.label, columns.classes) == ("ill", ("0", "1"))
    row = columns.describe(data.x)[1]
    assert row == {
        "age": "22 years",
        "sex": "m",
        "income": "1001.5 EUR",
        "income missing": "0",
        "born": "1951-03-02",
        "town": "B",
    }
    gap = columns.describe(data.x)[3]
    assert (gap["income"], gap["income missing"]) == ("1006.5 EUR", "1")
    assert len(columns.notes) == 5
    assert "`id` was left out" in columns.notes[0]
    part = concat([data.take([1, 2]), data.take([3])]).to("cpu", torch.float64)
    assert part.columns is columns


def test_counted_rows_are_ids_and_measurements_are_not(tmp_path: Path) -> None:
    rows = [f"{100 + i},{i * 7 % 13},{i * 1.25},{i % 2}" for i in range(12)]
    path = table(tmp_path / "t.csv", "case,dose,weight,y", *rows)
    encoded, plain = from_csv(path, "y", encode="auto"), from_csv(path, "y")
    assert encoded.columns is not None
    assert [column.name for column in encoded.columns.columns] == ["dose", "weight"]
    assert plain.shape == (3,)


def test_a_stray_cell_among_numbers_is_a_mistake(tmp_path: Path) -> None:
    rows = [f"{'two' if i == 5 else i},{i % 2}" for i in range(30)]
    with refused("wrong-type", "path") as caught:
        from_csv(table(tmp_path / "t.csv", "a,y", *rows), "y", encode="auto")
    assert "'two' in row 7" in str(caught.value)


def test_private_and_held_out_tables_have_one_scale(tmp_path: Path) -> None:
    one = table(tmp_path / "one.csv", "a,c,y", "0,u,yes", "5,v,no")
    other = table(tmp_path / "other.csv", "a,c,y", "10,w,no")
    private, held_out = from_csvs([one, other], "y", encode="auto")
    assert private.x.tolist() == [[0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 1.0, 0.0]]
    assert held_out.x.tolist() == [[1.0, 0.0, 0.0, 1.0]]
    assert (private.name, held_out.name, held_out.y.tolist()) == ("one", "other", [0])
    with refused("conflict", "path"):
        from_csvs([one, table(tmp_path / "third.csv", "c,a,y", "u,1,no")], "y", encode="auto")
