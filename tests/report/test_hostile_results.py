"""`remanence report` on results of a stranger: a page in a few seconds, or one line that says what is wrong."""

import csv
import json
import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import torch
from made_run import figure_json, made_measure, made_point, made_run
from refusals import refused
from safetensors.torch import save_file

from remanence.experiments.codec import encode
from remanence.experiments.folder import Run, read_run, write_run
from remanence.experiments.results import dump_results
from remanence.report import render

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


class Tags(HTMLParser):
    """The tags of a page with an attribute that could run something, and the number of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts, self.handlers = 0, list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]


def rendered(folder: Path) -> str:
    """The page, which is made within five seconds, can be written, and runs no script but ours."""
    start = process_time()
    page = render(read_run(folder))
    assert process_time() - start < 5
    page.encode()
    tags = Tags(page)
    assert (tags.scripts, tags.handlers) == (1, [])
    return page


def written(folder: Path, *, results: Any = None, run: Run | None = None) -> Path:
    run = made_run() if run is None else run
    write_run(folder, run)
    if results is not None:
        (folder / "results.json").write_text(results if isinstance(results, str) else json.dumps(results))
    return folder


def result(**changes: Any) -> dict[str, Any]:
    """The JSON of a result with an attack; `attack__scores__fpr` is a field inside others."""
    value: dict[str, Any] = json.loads(dump_results(made_run().results))[0]
    for path, new in changes.items():
        *outer, last = path.split("__")
        inside = value
        for name in outer:
            inside = inside[name]
        inside[last] = new
    return value


def series(y: list[Any], **changes: Any) -> dict[str, Any]:
    return {"name": "a", "x": list(range(len(y))), "y": y, "low": None, "high": None, "role": "ours"} | changes


def test_everything_that_is_text_is_escaped(tmp_path: Path) -> None:
    def hostile(value: Any) -> Any:
        match value:
            case dict():
                return {key: hostile(each) for key, each in value.items()}
            case list():
                return [hostile(each) for each in value]
            case str() if value not in ("ssim", "mse", "lines", "bars", "points", "ours"):
                return SCRIPT
        return value

    figures = [figure_json(kind) for kind in ("lines", "bars", "points")]
    value = hostile(result(measures=[made_measure("m", 1.0)], point=made_point("a", "b", series="s")))
    value["figures"] = [
        figure | dict.fromkeys(("title", "x_label", "y_label"), SCRIPT) | {"series": [series([1.0, 2.0], name=SCRIPT)]}
        for figure in figures
    ]
    rows = [dict.fromkeys(row, SCRIPT) | {SCRIPT: SCRIPT} for row in made_run().rows]
    folder = written(tmp_path, run=Run(results=made_run().results, rows=rows, images={}), results=[value, value])
    page = rendered(folder)
    assert SCRIPT not in page
    assert "49" not in page.partition("{{ 7*7 }}")[0][-20:]


HUGE, TINY = 1.7e308, 5e-324
NUMBERS: dict[str, list[Any]] = {
    "largest": [HUGE, -HUGE],
    "one largest": [HUGE],
    "smallest": [TINY, 0.0],
    "one smallest": [TINY],
    "largest and smallest": [HUGE, TINY, -HUGE],
    "near each other": [1e300, 1.0000000000000002e300],
    "whole": [2**63, -(2**63), 2**53],
    "gaps": [None, HUGE, None],
    "tiny": [1e-13, 2e-13],
}


@pytest.mark.parametrize("kind", ["lines", "bars", "points"])
@pytest.mark.parametrize("case", NUMBERS)
def test_any_finite_number_is_drawn(tmp_path: Path, case: str, kind: str) -> None:
    y = NUMBERS[case]
    x = [value or 1.0 for value in y]
    figures = [
        figure_json(kind, log_x=log, log_y=log, series=[series(y, x=x, low=y, high=y), series([0.5] * len(y))])
        for log in (False, True)
    ]
    value = next(each for each in y if each is not None)
    measures, point = [made_measure("m", value, low=value, high=value, chance=value)], made_point("a", value, log=True)
    budget = dict.fromkeys(("epochs", "iterations", "restarts", "shadows", "records", "victims"))
    interval = {"value": value, "low": value, "high": value}
    changed = result(
        figures=figures,
        measures=measures,
        point=point,
        seconds=value,
        budget=budget | {"epochs": [abs(value), abs(value)]},
        attack__scores__objective=value,
        attack__scores__test__p=value,
        attack__scores__test__false=value,
        attack__scores__identification__median=value,
        attack__scores__closer__chance=value,
        attack__scores__found__fraction=interval,
        attack__scores__metrics__ssim__mean=value,
        attack__scores__histogram__edges=sorted([value, *range(24)]),
        attack__scores__roc={"fpr": x, "tpr": x, "tpr_at_1_percent": interval, "tpr_at_01_percent": interval},
    )
    page = rendered(written(tmp_path, results=[changed, changed]))
    assert "nan" not in page.partition("<main>")[2].partition("<script>")[0].replace("provenance", "")


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


DAMAGED: dict[str, Callable[[], Any]] = {
    "400 digits": lambda: [result(seconds=10**400)],
    "400 digits for a count": lambda: [result(seed=10**400)],
    "400 digits for the schema": lambda: [result(schema=10**400)],
    "5000 digits": lambda: dump_results(made_run().results).replace('"seed": 7', f'"seed": 1{"0" * 5000}'),
    "beyond floats": lambda: dump_results(made_run().results).replace('"seed": 7', '"seed": 1e999'),
    "infinity": lambda: dump_results(made_run().results).replace('"seed": 7', '"seed": -Infinity'),
    "half a character": lambda: [result(label="\ud800")],
    "half a character in a name": lambda: [result(attack__release__shows={"\udfff": "a"})],
    "a text of a million": lambda: [result(about="x" * 10**6)],
    "deep": lambda: deep(100_000),
    "less deep": lambda: f"[{deep(900)}]",
    "deep schema": lambda: f'[{{"schema": {deep(900)}}}]',
    "a list": lambda: [[]],
    "text": lambda: ["a"],
    "nothing": lambda: "",
    "null": lambda: "null",
    "zero bytes": lambda: "\x00" * 1000,
    "unknown fields": lambda: [result() | {"\x1b[2J" * 1000: 1}],
    "a million results": lambda: [0] * 10**6,
    "too many results": lambda: [result()] * 201,
    "many numbers": lambda: [result(figures=[figure_json("points", series=[series([0.5] * 300_000)])])] * 2,
    "many figures": lambda: [result(figures=[figure_json()] * 10_001)],
    "a list for a number": lambda: [result(seconds=[1])],
    "true for a number": lambda: [result(seconds=True)],
    "a number for a text": lambda: [result(label=1)],
    "lists of two lengths": lambda: [result(figures=[figure_json("lines", series=[series([1.0], x=[1.0, 2.0])])])],
    "texts for points": lambda: [result(figures=[figure_json("points", series=[series([1.0], x=["a"])])])],
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_results_are_refused(tmp_path: Path, case: str) -> None:
    folder, start = written(tmp_path, results=DAMAGED[case]()), process_time()
    with refused("damaged-file") as caught:
        rendered(folder)
    assert process_time() - start < 5
    assert len(str(caught.value)) <= 1000
    assert str(caught.value).isprintable()


METRIC = result()["attack"]["scores"]["metrics"]["ssim"]
LARGE: dict[str, Callable[[], list[Any]]] = {
    "points": lambda: [result(figures=[figure_json("points", series=[series([0.5] * 120_000)])])],
    "a curve": lambda: [result(figures=[figure_json("lines", series=[series([0.5] * 120_000)])])],
    "bars": lambda: [
        result(figures=[figure_json("bars", series=[series([0.5] * 50_000, x=[f"b{i}" for i in range(50_000)])])])
    ],
    "series": lambda: [result(figures=[figure_json("lines", series=[series([0.5])] * 10_000)])],
    "measures": lambda: [result(measures=[made_measure("m", 1.0)] * 10_000)],
    "a call": lambda: [result(attack__call=f"KKT({','.join(f'a{i}=1' for i in range(9000))})")],
    "an endless call": lambda: [result(attack__call="-" * 99_999)],
    "a nested call": lambda: [result(attack__call="f(" * 9000)],
    "long texts": lambda: [result(label="l" * 90_000, about="a" * 90_000, attack__release__withholds="w" * 90_000)],
    "metrics": lambda: [result(attack__scores__metrics={f"m{i}": METRIC for i in range(9000)} | {"ssim": METRIC})],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_large_results_take_seconds_and_no_longer(tmp_path: Path, case: str) -> None:
    rendered(written(tmp_path, results=LARGE[case]()))


@pytest.mark.slow
def test_many_results_with_many_rows_and_pictures_take_seconds(tmp_path: Path) -> None:
    run = made_run([f"r{i}" for i in range(40)], n=40)
    labels = [encode(each) | {"label": "same", "point": made_point("a", i)} for i, each in enumerate(run.results)]
    for each in labels:
        each["attack"]["scores"]["roc"] = {"fpr": [], "tpr": [], "tpr_at_1_percent": None, "tpr_at_01_percent": None}
    rows = [row | {"experiment": "same"} for row in run.rows]
    with pytest.raises(ValueError, match="1600 rows in scores"):
        rendered(written(tmp_path, run=Run(results=run.results, rows=rows, images=run.images), results=labels))
    rendered(written(tmp_path, run=Run(results=run.results, rows=rows, images={}), results=labels))
    for i, each in enumerate(labels):
        each["label"] = f"r{i}"
    rendered(written(tmp_path, run=run, results=labels))


IMAGES: dict[str, dict[str, torch.Tensor]] = {
    "no channels": {"truth": torch.zeros(16, 0, 4, 4, dtype=torch.uint8)},
    "no height": {"truth": torch.zeros(16, 3, 0, 4, dtype=torch.uint8)},
    "no features": {"truth": torch.zeros(16, 0)},
    "no records": {"truth": torch.zeros(0, 3, 4, 4, dtype=torch.uint8)},
    "several shapes": {"truth": torch.zeros(16, 3, 4, 4, dtype=torch.uint8)},
    "floats": {"truth": torch.zeros(16, 3, 4, 4)},
    "a number": {"truth": torch.zeros(())},
    "halves": {"truth": torch.zeros(16, 4).half()},
    "control characters": {"\x1b[2J" * 50: torch.zeros(3)},
}


@pytest.mark.parametrize("case", IMAGES)
def test_pictures_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    folder = written(tmp_path)
    images = read_run(folder).images | {f"0/{name}": x for name, x in IMAGES[case].items()}
    save_file({name: x.contiguous().clone() for name, x in images.items()}, folder / "images.safetensors")
    with refused("damaged-file") as caught:
        rendered(folder)
    assert str(caught.value).isprintable()


def test_a_file_of_very_many_tensors_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    header = json.dumps(
        {f"{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)}
    ).encode()
    (folder / "images.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    start = process_time()
    with refused("damaged-file"):
        rendered(folder)
    assert process_time() - start < 2


@pytest.mark.parametrize("shape", [(3, 1, 100_000), (1, 100_000, 1), (5, 3000, 3000), (2, 1, 1)])
def test_pictures_of_any_size_are_shown(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = torch.randint(256, (1, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).expand(
        16, *shape
    )
    x = x if shape[1] < 3000 else x[:2]
    run = made_run(n=len(x), leak=1)
    folder = written(tmp_path, run=Run(results=run.results, rows=run.rows, images=dict.fromkeys(run.images, x)))
    assert "data:image/png;base64," in rendered(folder)


def lines(header: list[str], row: list[str], count: int) -> str:
    return "\n".join([",".join(header), *[",".join(row)] * count])


TABLES: dict[str, str] = {
    "no experiment": "a,b\n1,2\n",
    "short rows": "experiment,b\n1\n",
    "long rows": "experiment,b\n1,2,3\n",
    "many rows": lines(["experiment", "a"], ["x", "1"], 300_000),
    "many cells": lines(["experiment", *(f"c{i}" for i in range(5000))], ["x"] + [""] * 5000, 1000),
    "a long cell": f"experiment,b\n{'x' * 200_000},1\n",
    "zero bytes": "\x00" * 100_000,
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_scores_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    folder = written(tmp_path)
    (folder / "scores.csv").write_text(TABLES[case])
    if case == "zero bytes":  # one column of odd name and no rows
        rendered(folder)
        return
    with refused("damaged-file") as caught:
        rendered(folder)
    assert len(str(caught.value)) <= 1000


def test_odd_numbers_in_the_table_of_scores_are_shown(tmp_path: Path) -> None:
    folder = written(tmp_path, run=Run(results=made_run().results, rows=made_run().rows, images={}))
    rows = made_run().rows
    for row, odd in zip(rows, ("inf", "-inf", "nan", "1e999", "9" * 400, "1_0", "٣", "\x1b[2J", ""), strict=False):
        row["ssim"] = row["mse"] = row["record"] = odd
    with (folder / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    rendered(folder)


@pytest.mark.parametrize("name", ["results.json", "scores.csv", "images.safetensors"])
def test_a_pipe_or_folder_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path)
    for make in (os.mkfifo, os.mkdir):
        (folder / name).unlink()
        make(folder / name)
        with refused("wrong-type"):
            rendered(folder)
