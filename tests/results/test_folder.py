"""A run folder is read as it was written, or refused; a write that fails changes nothing."""

import csv
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from files import contents
from refusals import refused
from safetensors.torch import save_file
from tiny_experiments import tiny_experiment

from remanence.disk import replace_file
from remanence.experiments import run_experiment
from remanence.experiments.folder import Run, read_run, write_run
from remanence.experiments.summary import images, result_of, rows

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def run() -> Run:
    completed = run_experiment(tiny_experiment())
    made = result_of(completed, recipe="tiny", scale="smoke", seed=0, command="remanence run tiny")
    return Run(results=[made], rows=rows(completed), images={f"0/{name}": x for name, x in images(completed).items()})


def test_a_run_is_read_as_it_was_written(tmp_path: Path, run: Run) -> None:
    write_run(tmp_path / "new" / "deep", run)
    back = read_run(tmp_path / "new" / "deep")
    assert back.results == run.results
    assert back.rows == run.rows
    assert back.images.keys() == run.images.keys()
    assert all(torch.equal(back.images[name], run.images[name]) for name in run.images)


def test_any_text_survives(tmp_path: Path, run: Run) -> None:
    text = 'a "b", c;\r\nd é \N{EN DASH} \U0001f600 =1+1'
    odd = replace(run, results=[replace(run.results[0], label=text)], rows=[{"experiment": text, "found": ""}])
    write_run(tmp_path, odd)
    assert read_run(tmp_path).results[0].label == text
    assert read_run(tmp_path).rows_of(text) == odd.rows


def test_cells_with_other_metrics_share_a_table(tmp_path: Path, run: Run) -> None:
    write_run(tmp_path, replace(run, rows=[{"experiment": "a", "mse": "1"}, {"experiment": "b", "ssim": "2"}]))
    with (tmp_path / "scores.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["experiment", "mse", "ssim"], ["a", "1", ""], ["b", "", "2"]]


def test_a_picture_that_is_a_view_is_stored(tmp_path: Path, run: Run) -> None:
    turned = run.images["0/truth"].transpose(2, 3)
    assert not turned.is_contiguous()
    write_run(tmp_path, replace(run, images={"0/truth": turned}))
    assert torch.equal(read_run(tmp_path).images["0/truth"], turned)


def test_a_run_without_rows_and_pictures_removes_the_old_ones(tmp_path: Path, run: Run) -> None:
    write_run(tmp_path, run)
    assert contents(tmp_path).keys() == {"results.json", "scores.csv", "images.safetensors"}
    write_run(tmp_path, replace(run, rows=[], images={}))
    assert contents(tmp_path).keys() == {"results.json"}
    assert read_run(tmp_path) == Run(results=run.results, rows=[], images={})


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path, run: Run) -> None:
    write_run(tmp_path, run)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_run(tmp_path, replace(run, results=[replace(run.results[0], seconds=float("nan"))]))
    assert contents(tmp_path) == before


def half_written(path: Path, *_: Any, **__: Any) -> None:
    with open(path, "wb") as file:
        file.write(b"half")
    raise FULL


def full(*_: Any, **__: Any) -> None:
    raise FULL


BREAKS: dict[str, tuple[object, str, Callable[..., None]]] = {
    "the pictures": (Path, "write_bytes", half_written),
    "the rows": (csv.DictWriter, "writerows", full),
    "the results": (Path, "write_text", half_written),
    "the new names": (os, "replace", full),
}


@pytest.mark.parametrize("where", BREAKS)
def test_a_full_disk_leaves_the_old_run(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    write_run(tmp_path, run)
    before = contents(tmp_path)
    other = Run(
        results=[replace(run.results[0], seed=1)],
        rows=[{**row, "found": "?"} for row in run.rows],
        images={name: 255 - x for name, x in run.images.items()},
    )
    target, name, broken = BREAKS[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, broken)
        with pytest.raises(OSError, match="No space left on device"):
            write_run(tmp_path, other)
    assert contents(tmp_path) == before
    write_run(tmp_path, other)
    assert all(contents(tmp_path)[name] != before[name] for name in before)


@pytest.mark.parametrize("error", [FULL, PermissionError(errno.EACCES, "no"), KeyboardInterrupt(), RuntimeError("x")])
def test_an_unfinished_file_is_never_seen(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        assert path.read_text() == "old"
        raise error

    with pytest.raises(type(error)) as caught:
        replace_file(path, write)
    assert contents(tmp_path) == {"file": b"old"}
    if isinstance(error, OSError):
        assert caught.value.filename == str(path)  # and not the temporary's


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with refused("missing-file", "folder"):
            read_run(folder)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("results.json", b"\xff\xfe"),
        ("results.json", b"[{"),
        ("scores.csv", b"experiment,\xff"),
        ("scores.csv", b"experiment,record\na\n"),
        ("scores.csv", b"experiment,record\na,1,2\n"),
        ("scores.csv", b"other,record\na,1\n"),
        ("images.safetensors", b""),
        ("images.safetensors", b"\xff" * 100),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, run: Run, name: str, damage: bytes) -> None:
    write_run(tmp_path, run)
    (tmp_path / name).write_bytes(damage)
    with refused("damaged-file") as caught:
        read_run(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize("x", [torch.zeros(3, 1, 4, 4), torch.zeros(3, 4).double(), torch.zeros(3).byte()])
def test_pictures_of_another_kind_are_refused(tmp_path: Path, run: Run, x: torch.Tensor) -> None:
    write_run(tmp_path, run)
    save_file({"0/truth": x}, tmp_path / "images.safetensors")
    with refused("damaged-file"):
        read_run(tmp_path)
