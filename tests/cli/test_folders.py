"""Folders, disks and redaction: what a run leaves behind."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Call, Said, assert_refused, assert_told, printed_to
from files import contents
from tiny_experiments import tiny_experiment

import remanence.data
import remanence.experiments.folder
from remanence.auditing.demo_models import presets
from remanence.experiments.folder import read_run


@pytest.mark.slow
def test_other_results_are_kept_unless_forced(call: Call, tiny: None, tmp_path: Path) -> None:
    assert call("run", "tiny", "--out", "run").code == 0
    before = contents(tmp_path)
    assert_refused(call("run", "tiny", "--out", "run", "--seed", 1), "`run` holds other results", "--out", "--force")
    assert contents(tmp_path) == before
    assert call("run", "tiny", "--out", "run").code == 0  # the same again is no loss
    assert call("run", "tiny", "--out", "run", "--seed", 1, "--force").code == 0
    assert {record.seed for record in read_run(tmp_path / "run").results} == {1}


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
    monkeypatch.setattr(remanence.experiments.folder, "TemporaryFile", denied)
    assert_refused(call("run", "tiny", "--out", "run"), "cannot write into `run` (Permission denied)", "`--out`")
    assert_refused(call("report", "run"), "cannot write into `run` (Permission denied)", "`--out`")
    assert contents(tmp_path) == before


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


def test_a_damaged_run_is_refused(call: Call, tiny: None, tmp_path: Path) -> None:
    call("run", "tiny", "--out", "run")
    (tmp_path / "run" / "results.json").write_text("[{}]")
    before = contents(tmp_path)
    assert_refused(call("report", "run"), "results.json", "make the run again")
    assert contents(tmp_path) == before
