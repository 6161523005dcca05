"""The commit that a record names."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_result import made

from remanence.experiments import Completed

PROVENANCE = sys.modules["remanence.experiments.results.provenance"]  # by attribute one gets the function of that name


def git(folder: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_our_checkout(result: Completed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "src" / "remanence" / "results"
    place.mkdir(parents=True)
    (place / "provenance.py").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.setattr(PROVENANCE, "__file__", str(place / "provenance.py"))
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert made(result)["commit"] == head
    (place / "provenance.py").write_text("two")
    assert made(result)["commit"] == f"{head}-dirty"
    # an installed copy inside the checkout of another project does not claim that project's commit
    installed = tmp_path / "lib" / "site-packages" / "remanence" / "results"
    installed.mkdir(parents=True)
    monkeypatch.setattr(PROVENANCE, "__file__", str(installed / "provenance.py"))
    assert made(result)["commit"] is None


def test_there_is_no_commit_without_git(result: Completed, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert made(result)["commit"] is None
