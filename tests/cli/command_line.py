"""What the tests of the command line share."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

from remanence.cli import main

ROOT = Path(__file__).parents[2]
FILES = ["evidence.safetensors", "images.safetensors", "report.html", "results.json", "scores.csv"]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Call = Callable[..., Said]


def ended(program: Callable[[], None]) -> int:
    try:
        program()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def assert_refused(said: Said, *words: str) -> None:
    """Exit code 2, nothing on stdout, and one or two lines on stderr that hold the words."""
    assert (said.code, said.out) == (2, "")
    assert_told(said, *words)


def assert_told(said: Said, *words: str) -> None:
    assert said.err.startswith("error: ")
    assert said.err.endswith("\n")
    assert len(said.err.splitlines()) <= 2, said.err
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


def printed_to(stdout: TextIO, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "argv", ["remanence", *arguments])
        return ended(main)
