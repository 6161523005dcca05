"""Odd environments: no home, a terminal without Unicode, closed streams, names that are no text; one sentence each."""

import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from command_line import Call, Said, assert_refused

from remanence.experiments.folder import read_run

ODD = "\N{GREEK SMALL LETTER MU}\N{EN DASH}\u202e\x1b[2J"


def process(*arguments: "str | bytes", prefix: str = "", cwd: Path | None = None, **environment: str) -> Said:
    """The program in a process of its own; `prefix` goes before it on the line of a shell."""
    command = b" ".join(
        shlex.quote(each).encode() if isinstance(each, str) else b"'" + each + b"'"
        for each in (sys.executable, "-m", "remanence", *arguments)
    )
    line = prefix.encode().replace(b"PROGRAM", command) if prefix else command
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, cwd=cwd, env=plain() | environment, timeout=60, check=False
    )
    return Said(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def plain() -> Mapping[str, str]:
    names = ("PATH", "PYTHONPATH", "HOME")
    return {name: os.environ[name] for name in names if name in os.environ} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither $HOME nor an entry among the users, as in many containers."""

    def unknown(_: Any) -> NoReturn:
        raise KeyError("uid not found")

    for name in ("HOME", "XDG_CACHE_HOME", "REMANENCE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


def test_without_a_home_what_needs_none_works(call: Call, homeless: None, tmp_path: Path) -> None:
    said = call("data", "list")
    assert said.code == 0
    assert "embedded" in said.out
    assert_refused(call("data", "fetch", "mnist"), "no home directory", "`$REMANENCE_DATA`")
    assert_refused(call("audit", "data", "--data", "mnist"), "mnist needs the file", "`$REMANENCE_DATA/mnist/`")
    assert_refused(call("audit", "data", "--data", "~/a.npz"), "`~/a.npz`", "without `~`")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["~nosuchuser", "~nosuchuser/data", "~"])
def test_a_data_folder_in_an_unknown_home_is_one_sentence(
    call: Call, homeless: None, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("REMANENCE_DATA", folder)
    for arguments in (("data", "list"), ("data", "fetch", "mnist"), ("audit", "data", "--data", "mnist"), ("list",)):
        assert_refused(call(*arguments), f"`{folder}`", "home directory")


def test_unknown_users_in_sources_are_one_sentence(call: Call) -> None:
    for source in ("~nosuchuser/a.npz", "~nosuchuser/a.csv", "~nosuchuser/faces"):
        assert_refused(call("audit", "data", "--data", source), "home directory that is not known")


def test_a_data_folder_that_is_a_file_or_device(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", Path("/dev/null"), tmp_path / ("x" * 300)):
        monkeypatch.setenv("REMANENCE_DATA", str(folder))
        assert call("data", "list").code == 0
        assert_refused(call("data", "fetch", "mnist"), "$REMANENCE_DATA")


def test_closed_folders_are_one_sentence(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    (closed / "a").mkdir(parents=True)
    closed.chmod(0)
    if os.access(closed, os.R_OK):
        pytest.skip("root may read everything")
    try:
        for source in (closed, closed / "a.npz", closed / "a.csv", closed / "a"):
            label = ("--label", "y") if source.suffix == ".csv" else ()
            assert_refused(call("audit", "data", "--data", source, *label), "Permission denied")
        assert_refused(call("report", closed), "not readable")
        monkeypatch.setenv("REMANENCE_DATA", str(closed))
        assert call("data", "list").code == 0
    finally:
        closed.chmod(0o700)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_terminal_without_unicode_gets_what_it_can_show(tmp_path: Path, encoding: dict[str, str]) -> None:
    assert process("list", cwd=tmp_path, **encoding).code == 0
    said = process("audit", "data", "--data", f"./{ODD}.npz", cwd=tmp_path, **encoding)
    assert_refused(said, "does not exist")
    assert said.err.removesuffix("\n").isprintable()


@pytest.mark.slow
def test_closed_streams_are_no_defect(tmp_path: Path) -> None:
    assert process("list", prefix="PROGRAM >&-", cwd=tmp_path).code == 0
    assert process("list", prefix="PROGRAM <&- >&- 2>&-", cwd=tmp_path).code == 0
    assert process("audit", "data", "--data", "nowhere.npz", prefix="PROGRAM 2>&-", cwd=tmp_path).code == 2
    full = process("list", prefix="PROGRAM > /dev/full", cwd=tmp_path)
    assert (full.code, "Traceback" in full.err, "No space left" in full.err) == (1, False, True)


@pytest.mark.slow
def test_a_working_folder_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    said = process("audit", "data", "--data", "a.npz", prefix=f"cd {gone} && rmdir {gone} && PROGRAM")
    assert said.code in (1, 2)
    assert "Traceback" not in said.err
    assert "defect" not in said.err


@pytest.mark.slow
def test_a_file_name_that_is_no_text_is_audited(call: Call, quick: None, tmp_path: Path) -> None:
    y = np.arange(220) % 2
    name = os.fsdecode(b"\xff\x1b[2J.npz")
    np.savez(tmp_path / name, x=np.random.default_rng(0).random((220, 5, 5)) / 2 + y[:, None, None] / 2, y=y)
    said = call("audit", "data", "--data", name, "--attack", "RecoNN", "--out", "audit")
    assert (said.code, said.err) == (0, "")
    (result,) = read_run(tmp_path / "audit").results
    assert result.command.isprintable()
    assert (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert call("report", tmp_path / "audit").code == 0
