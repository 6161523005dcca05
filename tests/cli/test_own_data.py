"""Data of one's own, good and bad."""

import csv
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FILES, Call, assert_refused, assert_told
from files import contents
from PIL import Image

from remanence.experiments.folder import read_run
from remanence.experiments.results import parse_results


def table(rows: int = 220, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Three numbers and a class that follows from them."""
    made = np.random.default_rng(0).random((rows, 3)).round(4)
    return [
        {"a": a, "b": b, "c": c, "y": ["no", "yes"][a + b > 1]} | {name: column[i] for name, column in columns.items()}
        for i, (a, b, c) in enumerate(made.tolist())
    ]


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_arrays(path: Path, *, n: int = 220, **changes: Any) -> None:
    y = np.arange(n) % 2
    x = np.random.default_rng(0).random((n, 5, 5)) / 2 + y[:, None, None] / 2
    np.savez(path, **({"x": x, "y": y} | changes))


def write_images(folder: Path, *, per_class: int = 110, last: tuple[int, int] = (5, 5)) -> None:
    generator = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            size = last if (label, i) == (1, per_class - 1) else (5, 5)
            pixels = generator.integers(100 * label, 100 * label + 150, size).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.mark.slow
def test_an_audit_of_a_table(call: Call, quick: None, tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv", table())
    said = call("audit", "data", "--data", "people.csv", "--label", "y", "--json")
    assert (said.code, said.err) == (0, "")
    gradient, one, stored, spans = parse_results(said.out, where="stdout")
    assert (stored.kind, stored.label) == ("measurement", "what stores a record, with ReLU")
    assert (spans.kind, spans.label) == ("measurement", "what the first layer spans")
    assert [caveat.code for caveat in spans.caveats] == ["no-gap"]  # more records than the three features
    assert (gradient.attack.release.kind, one.attack.release.kind) == ("Gradient", "AllButOne")
    assert gradient.attack.release.shows["shape"] == "3"
    assert gradient.recipe == "audit people.csv --label y --net mlp"
    assert sorted(contents(tmp_path / "runs" / "audit-people")) == FILES


@pytest.mark.slow
def test_an_attack_that_is_refused_does_not_end_an_audit(call: Call, quick: None, tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv", table())
    both = ("audit", "data", "--data", "people.csv", "--label", "y", "--attack", "Stein", "--attack", "RecoNN")
    said = call(*both)
    refused, found, page = said.out.splitlines()
    assert refused.startswith("gradient of a batch, at weights that the server chose: Refused: ")
    assert "1000 rows and 3 features cannot separate 4 records" in refused
    assert found.startswith("all records but one: ")
    assert "cannot separate 4 records" in Path(page).read_text()
    assert said.code == 2
    assert_told(said, "1 of 2 experiments refused (gradient of a batch, at weights that the server chose)", page)
    again = call(*both, "--json")
    assert [record.kind for record in parse_results(again.out, where="stdout")] == ["refused", "attack"]
    assert (again.code, again.err) == (2, said.err)


def test_an_audit_of_arrays(call: Call, quick: None, tmp_path: Path) -> None:
    write_arrays(tmp_path / "faces.npz")
    said = call("audit", "data", "--data", "faces.npz", "--attack", "RecoNN", "--redact", "--out", "audit")
    assert (said.code, said.err) == (0, "")
    (record,) = read_run(tmp_path / "audit").results
    assert (record.label, record.attack.release.shows["shape"]) == ("all records but one", "1x5x5")
    assert sorted(contents(tmp_path / "audit")) == ["report.html", "results.json"]


@pytest.mark.slow
def test_an_audit_of_a_folder_of_images(call: Call, quick: None, tmp_path: Path) -> None:
    write_images(tmp_path / "faces")
    said = call("audit", "data", "--data", "faces", "--attack", "GradientMatching")
    assert (said.code, said.err) == (0, "")
    assert read_run(tmp_path / "runs" / "audit-faces").images["0/truth"].shape == (8, 1, 5, 5)


def arrays(**changes: Any) -> Callable[[Path], None]:
    return partial(write_arrays, **changes)


def rows(made: list[dict[str, Any]]) -> Callable[[Path], None]:
    return partial(write_table, rows=made)


LABEL, PIXELS = ["--label", "y"], (220, 5, 5)
BAD_DATA: dict[str, tuple[str, Callable[[Path], object], list[str], list[str]]] = {
    "no label": ("t.csv", rows(table()), [], ["label", "class column"]),
    "unknown label": ("t.csv", rows(table()), ["--label", "yy"], ["`yy`", "did you mean `y`?"]),
    "text in a table": ("t.csv", rows(table(b=["x"] * 220)), LABEL, ["`b`", "(x)", "--encode auto"]),
    "few records": ("t.csv", rows(table(199)), LABEL, ["199", "at least 200"]),
    "few different records": ("t.csv", rows(table(120) * 2), LABEL, ["120 different records", "at least 200"]),
    "one class": ("t.csv", rows(table(y=[1] * 220)), LABEL, ["one class only"]),
    "out of range": ("x.npz", arrays(x=np.full(PIXELS, 9.0)), [], ["must lie in [0, 1]", "from 9 to 9"]),
    "a label for arrays": ("x.npz", arrays(), LABEL, ["`label`", ".csv", "leave it out"]),
    "empty arrays": ("x.npz", arrays(n=0), [], ["0 different records", "at least 200"]),
    "two sizes": ("faces", partial(write_images, last=(5, 6)), [], ["one size", "(5, 5)", "(6, 5)"]),
    "objects": ("x.npz", arrays(x=np.array([{}], object)), [], ["`x` of Python objects"]),
    "a pipe": ("x.npz", os.mkfifo, [], ["must be a regular file"]),
    "control characters": ("t.csv", rows(table(**{"\x1b[2J": ["x"] * 220})), LABEL, [r"`\x1b[2J`"]),
    "another file": ("notes.txt", Path.touch, [], ["a .npz, a .csv or a folder of images"]),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_is_refused_and_nothing_is_made(call: Call, quick: None, tmp_path: Path, case: str) -> None:
    name, write, arguments, words = BAD_DATA[case]
    write(tmp_path / name)
    before = contents(tmp_path)
    assert_refused(call("audit", "data", "--data", tmp_path / name, *arguments), *words)
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()
