"""Folders, disks and redaction: what a run leaves behind."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import FILES, Call, Said, assert_refused, assert_told, printed_to
from files import contents
from tiny_experiments import tiny_experiment

import remanence.data
import remanence.disk
from remanence import disk
from remanence.auditing.demo_models import presets
from remanence.disk import LOCK, one_process
from remanence.experiments.folder import read_run
from remanence_recipes import RECIPES


@pytest.mark.slow
def test_other_results_are_kept_unless_forced(call: Call, tiny: None, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    assert_refused(call("run", "tiny", "--out", "run", "--seed", 1), "`run` holds other results", "--out", "--force")
    assert contents(tmp_path) == before
    assert call("run", "tiny", "--out", "run").code == 0  # the same again is no loss
    assert call("run", "tiny", "--out", "run", "--seed", 1, "--force").code == 0
    assert {record.seed for record in read_run(tmp_path / "run").results} == {1}


@pytest.mark.slow
def test_each_of_several_seeds_has_a_folder_of_its_own(call: Call, tiny: None, tmp_path: Path) -> None:
    said = call("run", "tiny", "--out", "run", "--seed", 2, "--seed", 1, "--seed", 2)
    assert (said.code, said.err) == (0, "")
    *sentences, first, second = said.out.splitlines()
    assert [sentence.partition(":")[0] for sentence in sentences] == [
        f"seed {seed}, {label}" for seed in (2, 1) for label in ("one", "two")
    ]
    assert (first, second) == ("run/seed-2/report.html", "run/seed-1/report.html")
    assert call("run", "tiny", "--out", "alone", "--seed", 1).code == 0
    alone, among = (read_run(tmp_path / folder) for folder in ("alone", "run/seed-1"))
    assert [each.attack for each in among.results] == [each.attack for each in alone.results]
    assert among.rows == alone.rows
    before = contents(tmp_path)
    (tmp_path / "run" / "seed-2" / "results.json").write_text("mine")
    assert_refused(call("run", "tiny", "--out", "run", "--seed", 1, "--seed", 2), "`run/seed-2` holds other results")
    assert contents(tmp_path / "run" / "seed-1") == {
        name.removeprefix("run/seed-1/"): content for name, content in before.items() if "run/seed-1/" in name
    }


def test_an_audit_of_something_else_is_another_run(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(presets, "attack_experiments", lambda source, **_: [tiny_experiment()])
    assert call("audit", "data", "--data", "digits", "--out", "run").code == 0
    before = contents(tmp_path)
    for other in (["--net", "cnn"], ["--data", "mnist"], ["--label", "y"]):
        assert_refused(call("audit", "data", "--data", "digits", "--out", "run", *other), "`run` holds other results")
    assert contents(tmp_path) == before


def test_an_audit_with_fewer_attacks_does_not_drop_the_others(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = [
        tiny_experiment("one"),
        tiny_experiment("two", attack=remanence.attacks.GradientMatching(), split=no_split),
    ]
    monkeypatch.setattr(presets, "attack_experiments", lambda source, **_: cells)
    assert call("audit", "data", "--data", "digits", "--attack", "Guess", "--out", "run").code == 0
    assert [record.label for record in read_run(tmp_path / "run").results] == ["one"]
    assert_refused(
        call("audit", "data", "--data", "digits", "--attack", "GradientMatching", "--out", "run"), "holds other results"
    )


def no_split(seed: int) -> Any:
    raise AssertionError("this cell was not asked for")


@pytest.mark.parametrize(
    "arguments", [["run", "tiny", "--out"], ["demo", "--out"], ["audit", "data", "--data", "digits", "--out"]]
)
def test_a_folder_that_cannot_be_made_is_refused(call: Call, tiny: None, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in ("file", os.path.join("file", "run")):
        assert_refused(call(*arguments, folder), f"cannot write into `{folder}` (Not a directory)", "`--out`")
    assert contents(tmp_path) == {"file": b"mine"}


def failing(error: OSError) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_a_read_only_folder_is_refused(call: Call, tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    denied = failing(PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(remanence.disk, "TemporaryFile", denied)
    assert_refused(call("run", "tiny", "--out", "run"), "cannot write into `run` (Permission denied)", "`--out`")
    assert_refused(call("report", "run"), "cannot write into `run` (Permission denied)", "`--out`")
    assert contents(tmp_path) == before


def test_two_runs_in_one_folder_are_one_too_many(call: Call, tiny: None, tmp_path: Path) -> None:
    with one_process(tmp_path / "run"):
        before = contents(tmp_path)
        assert_refused(call("run", "tiny", "--out", "run"), f"`run` is in use by another run (process {os.getpid()})")
        assert contents(tmp_path) == before
    assert list(tmp_path.iterdir()) == []  # what was made for the lock alone is gone
    assert call("run", "tiny", "--out", "run").code == 0
    assert sorted(contents(tmp_path / "run")) == FILES


def test_the_lock_and_the_leftovers_of_a_dead_process_are_taken_over(call: Call, tiny: None, tmp_path: Path) -> None:
    folder, dead = tmp_path / "run", process_that_ended()
    folder.mkdir()
    (folder / LOCK).write_text(f"{dead}\n")
    real, other = disk._temporary(folder / "results.json"), folder / ".results.json.elsewhere-1-0.tmp"
    (folder / real.name.replace(f"-{os.getpid()}-", f"-{dead}-")).write_text("half")
    for mine in (real, other):  # of a process that lives, and of another machine
        mine.write_text("half")
    assert call("run", "tiny", "--out", "run").code == 0
    assert sorted(contents(folder)) == sorted([*FILES, real.name, other.name])


def process_that_ended() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    return ended.pid


def test_a_folder_that_vanishes_is_made_again_and_that_is_said(call: Call, tmp_path: Path) -> None:
    def vanish(seed: int) -> Any:
        shutil.rmtree(tmp_path / "run")
        return tiny_experiment().victims.split(seed)

    with pytest.MonkeyPatch.context() as patch:
        cells = [tiny_experiment("one"), tiny_experiment("two", split=vanish)]
        patch.setitem(RECIPES, "vanishing", lambda scale: cells)
        said = call("run", "vanishing", "--out", "run")
    assert said.code == 0
    assert said.err == "note: `run` vanished and is made again, with all that is finished\n"
    assert [result.label for result in read_run(tmp_path / "run").results] == ["one", "two"]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(call: Call, tiny: None, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    full = failing(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", full)
        said = call("run", "tiny", "--out", "run", "--seed", 1, "--force")
    assert (said.code, said.out) == (1, "")
    assert_told(said, "No space left on device (`run", "repeat the command")
    assert len(said.err.splitlines()) == 1
    assert contents(tmp_path) == before


def test_a_full_disk_below_stdout_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        assert printed_to(full, "list") == 1
    assert capsys.readouterr().err == "error: No space left on device: put that right and repeat the command\n"


def test_a_reader_that_has_enough_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        assert printed_to(closed, "list") == 1
    assert capsys.readouterr().err == ""


def test_a_redacted_page_of_a_full_run(call: Call, tiny: None, tmp_path: Path) -> None:
    call("run", "tiny", "--out", "run")
    before = contents(tmp_path)
    said = call("report", "run", "--out", "public/page.html", "--redact")
    assert said == Said(0, "public/page.html\n", "")
    page = (tmp_path / "public" / "page.html").read_text()
    assert "This page is redacted" in page
    assert "data:image/png" not in page
    (tmp_path / "public" / "page.html").unlink()
    assert contents(tmp_path) == before


def test_a_page_goes_into_a_folder_that_is_there(call: Call, tiny: None, tmp_path: Path) -> None:
    call("run", "tiny", "--out", "run")
    (tmp_path / "there").mkdir()
    assert call("report", "run", "--out", "there").out == f"{os.path.join('there', 'report.html')}\n"
    (tmp_path / "file").write_text("mine")
    assert_refused(call("report", "run", "--out", "file/page.html"), "cannot write into `file`", "`--out`")
    assert_refused(call("report", "run", "--out", "page.pdf"), "`--out`", "page.pdf")


@pytest.mark.parametrize("text", ["[{}]", "[" * 100_000, f'[{{"schema": 1{"0" * 400}}}]', '[{"schema": "\\u001b[2J"}]'])
def test_a_damaged_run_is_refused(call: Call, tiny: None, tmp_path: Path, text: str) -> None:
    call("run", "tiny", "--out", "run")
    (tmp_path / "run" / "results.json").write_text(text)
    before = contents(tmp_path)
    assert_refused(call("report", "run"), "results.json", "make the run again")
    assert contents(tmp_path) == before
