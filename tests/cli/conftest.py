"""The program, called in this process, and small work for it."""

import sys
from functools import partial
from pathlib import Path

import pytest
from command_line import Call, Said, ended
from tiny_experiments import tiny_experiment

from remanence.auditing.demo_models import presets
from remanence.cli import main
from remanence_recipes import RECIPES


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Call the program in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["remanence", *map(str, arguments)])
        capsys.readouterr()
        code = ended(main)
        return Said(code, *capsys.readouterr())

    return called


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of two cells that take no time."""
    monkeypatch.setitem(RECIPES, "tiny", lambda scale: [tiny_experiment("one"), tiny_experiment("two")])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit` at the budget of the smoke scale."""
    monkeypatch.setattr(presets, "attack_experiments", partial(presets.attack_experiments, quick=True))
