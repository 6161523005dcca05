"""The commit that a result names."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from made_result import made

from remanence.experiments import Completed, provenance


def git(folder: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_our_checkout(
    completed: Completed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "src" / "remanence" / "experiments"
    source.mkdir(parents=True)
    (source / "provenance.py").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.setattr(provenance, "__file__", str(source / "provenance.py"))
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert made(completed).commit == head
    (source / "provenance.py").write_text("two")
    assert made(completed).commit == f"{head}-dirty"
    # an installed copy inside the checkout of another project does not claim that project's commit
    installed = tmp_path / "lib" / "site-packages" / "remanence" / "experiments"
    installed.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(installed / "provenance.py"))
    assert made(completed).commit is None


def test_there_is_no_commit_without_git(completed: Completed, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert made(completed).commit is None
